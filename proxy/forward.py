"""One request on its way: sent, relayed, settled.

An exchange has one client and, at a time, at most one engine connection. Whatever
ends it (answer complete, client gone, engine lost, deadline) goes through _settle,
which releases the load exactly once.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from warmroute.policies.errors import ClientError
from warmroute.proxy.failures import (
    CLIENT_GONE,
    connect_failure,
    lost,
    shutting_down,
    stood_still,
    unreachable,
)
from warmroute.proxy.http.head import RequestHead
from warmroute.proxy.http.inbound import ClientConnection
from warmroute.proxy.http.outbound import Answer, UpstreamConnection
from warmroute.proxy.http.reply import error_answer
from warmroute.proxy.http.watch import Usage
from warmroute.proxy.late_trace import trace_late
from warmroute.proxy.relay import Relay

if TYPE_CHECKING:
    from warmroute.proxy.port import DataPort
    from warmroute.proxy.routing import Routing

logger = logging.getLogger(__name__)

_AGED_S: Final = 1.0


class Exchange:
    """Answer one routed request from its engine. The work of a ClientConnection.

    Args:
        port: The listener it came through.
        client: Who asked, and gets the answer.
        head: The client's head.
        body: The body as engines get it.
        asks_usage: Whether the wish for usage in it is ours, not the client's.
        routing: Where it goes, with its load reserved.
        started_at: When it had arrived.
        routed_at: When the backend was chosen.
    """

    __slots__ = (
        *("_asks_usage", "_body", "_client", "_connecting", "_excluded"),
        *("_head", "_is_paused", "_is_sent", "_is_settled", "_num_lost", "_port"),
        *("_relay", "_routing", "_sent_at", "_started_at", "_ttft_s", "_upstream"),
    )

    def __init__(
        self,
        port: "DataPort",
        client: ClientConnection,
        head: RequestHead,
        body: bytes,
        asks_usage: bool,
        routing: "Routing",
        started_at: float,
        routed_at: float,
    ) -> None:
        self._port = port
        self._client = client
        self._head = head
        self._body = body
        self._asks_usage = asks_usage
        self._routing = routing
        self._started_at = started_at
        self._sent_at = routed_at
        self._connecting: asyncio.Task[None] | None = None
        self._upstream: UpstreamConnection | None = None
        self._relay: Relay | None = None
        self._excluded: list[str] = []
        self._num_lost = 0
        self._is_paused = False
        self._is_sent = False
        self._is_settled = False
        self._ttft_s: float | None = None

    def __repr__(self) -> str:
        return f"<Exchange {self._head.request_id.decode()} {self._routing}>"

    # Work

    def begin(self) -> None:
        """Send the request."""
        self._attempt(self._sent_at)

    def client_gone(self) -> None:
        """Close the engine's side at once: nobody reads the answer any more."""
        if self._close_upstream() is not None:
            self._port.abandoned(self._routing)
        self._port.fleet.abandoned(self._routing.backend)
        self._settle(CLIENT_GONE, "client_gone")

    def client_writable(self, writable: bool) -> None:
        """Let the client's pace be the engine's."""
        self._is_paused = not writable
        if self._upstream is not None:
            if writable:
                self._upstream.resume()
            else:
                self._upstream.pause()

    def expired(self) -> None:
        """End an exchange in which one side has stood still for too long."""
        connection = self._close_upstream()
        if self._is_paused:
            self._port.fleet.abandoned(self._routing.backend)
            self._settle(CLIENT_GONE, "client_timeout")
            self._client.abort()
            return
        self._blame("timeout")
        self._fail(stood_still(self._routing.backend.name), connection)

    def interrupted(self) -> None:
        """End because the process does, after its time to drain ran out."""
        connection = self._close_upstream()
        self._fail(shutting_down(), connection)

    # sending

    def _attempt(self, now: float) -> None:
        connection = self._port.upstreams.pool(self._routing.backend).acquire(now)
        if connection is not None:
            self._send(connection, now)
            return
        self._client.deadline = float("inf")  # connecting has a timeout of its own
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(self._port.connect_s):
                connection = await self._port.upstreams.connect(self._routing.backend)
        except (OSError, TimeoutError) as error:
            self._connecting = None
            reason = connect_failure(error)
            self._blame(reason)
            self._retry(reason)
            return
        self._connecting = None
        try:
            self._send(connection, self._port.clock())
        except Exception:
            connection.abort()
            logger.exception("request_broke")
            self._fail(ClientError(500, "internal_error", "see the proxy's log"))

    def _send(self, connection: UpstreamConnection, now: float) -> None:
        port, routing, head, body = self._port, self._routing, self._head, self._body
        self._upstream = connection
        self._sent_at = now
        self._is_sent = True
        traceparent = None
        if routing.trace is not None:
            traceparent = routing.trace_attempt(now)
        client = self._client
        client.deadline = now + port.first_byte_s
        start = port.forwarding.head_for(
            head, routing.backend, client.peer, len(body), traceparent, routing.rank
        )
        connection.send(self, start, body, bodiless=head.method == b"HEAD")
        if self._is_paused:
            connection.pause()

    def _retry(self, reason: str, *, may_repeat: bool = False) -> None:
        """Send again where it can be done without doing anything twice."""
        port, routing = self._port, self._routing
        self._excluded.append(routing.backend.name)
        now = port.clock()
        self._trace_late()
        routing.attempt_failed(reason, now)
        if self._num_lost <= port.retry_attempts:
            if routing.reroute(self._excluded, reason, now):
                self._attempt(now)
                return
            if may_repeat and port.retry_attempts:
                routing.again(reason, now)
                self._attempt(now)
                return
        self._fail(unreachable(routing.backend.name, reason))

    # Receiver

    def answer_started(self, answer: Answer) -> Relay:
        """Take the head of the engine's answer."""
        port, head, routing = self._port, self._head, self._routing
        now = port.clock()
        routing.confirmed(now)
        if answer.status >= 500:
            self._blame(f"status {answer.status}")
        lines = b"x-request-id: %b\r\n" % head.request_id
        if head.explains:
            lines += routing.explain_lines()
        self._relay = relay = Relay(
            self,
            self._client,
            head,
            answer,
            port.clock,
            now,
            port.idle_s,
            routing.gaps,
            lines,
            head.keeps_alive and not port.is_draining,
            self._asks_usage,
            port.tracer is not None,
        )
        return relay

    def first_token(self, now: float) -> None:
        """Learn when the first token came."""
        self._ttft_s = now - self._started_at
        self._routing.first_token(now)

    def progressed(self) -> None:
        """Learn that the answer moves on."""
        self._port.fleet.progressed(self._routing.backend)

    def answer_ended(self) -> None:
        """Give the connection back, then settle."""
        port, routing, relay = self._port, self._routing, self._relay
        assert relay is not None
        usage, now = relay.end(), port.clock()
        connection, self._upstream = self._upstream, None
        if connection is not None:
            if self._is_paused:
                connection.resume()
            port.upstreams.pool(routing.backend).release(connection, now)
        status = relay.status
        if status < 400:
            port.fleet.succeeded(routing.backend)
        elif status < 500:
            port.fleet.abandoned(routing.backend)
        try:
            self._settle(status, None, usage, now)
        finally:
            self._client.finished(keep_alive=relay.keeps_alive)

    def answer_lost(self, reason: str) -> None:
        """Retry where nothing came yet; else tell the client what happened."""
        connection, self._upstream = self._upstream, None
        # A kept connection may die of old age: no fault of the backend. Later, the
        # engine was at work on this request.
        is_aged = (
            connection is not None
            and connection.is_reused
            and self._port.clock() - self._sent_at < _AGED_S
        )
        if connection is None or not connection.has_answered:
            if not is_aged:
                self._blame(reason)
            self._num_lost += 1
            self._retry(reason, may_repeat=is_aged)
            return
        self._blame(reason)
        self._fail(lost(self._routing.backend.name, reason), connection)

    def _close_upstream(self) -> UpstreamConnection | None:
        if self._connecting is not None:
            self._connecting.cancel()
        connection, self._upstream = self._upstream, None
        if connection is not None:
            connection.abort()
        return connection

    def _blame(self, reason: str) -> None:
        self._port.fleet.failed(self._routing.backend, reason)

    def _fail(
        self, error: ClientError, connection: UpstreamConnection | None = None
    ) -> None:
        """End with an error of ours, in the form that still fits the answer."""
        relay = self._relay
        if relay is not None:
            self._settle(relay.status, error.code)
            at_boundary = connection is None or connection.at_chunk_boundary
            relay.fail(error, at_boundary=at_boundary)
            return
        head = self._head
        keeps_alive = head.keeps_alive and not self._port.is_draining
        self._settle(error.status, error.code)
        self._client.write(error_answer(error, head.request_id, close=not keeps_alive))
        self._client.finished(keep_alive=keeps_alive)

    def _settle(
        self,
        status: int,
        error: str | None,
        usage: Usage | None = None,
        now: float | None = None,
    ) -> None:
        """Release the load and close the record; the first call counts."""
        if self._is_settled:
            return
        self._is_settled = True
        self._relay = None  # it refers to this exchange: no garbage in a ring
        routing = self._routing
        if now is None:
            now = self._port.clock()
        routing.settle(status, now, now - self._started_at, self._ttft_s, usage, error)
        tracer, took_s = self._port.tracer, now - self._started_at
        if tracer is not None and tracer.is_unusual(
            took_s, status, error, routing.decision
        ):
            self._trace_late()
        if routing.trace is not None:
            routing.trace.end(now, status, error, usage, self._body)

    def _trace_late(self) -> None:
        """Make the marks of what was not sampled, and is not as others are."""
        tracer, routing = self._port.tracer, self._routing
        if tracer is None or routing.trace is not None:
            return
        trace_late(
            tracer,
            self._head,
            self._client.peer,
            routing,
            self._started_at,
            self._sent_at if self._is_sent else None,
            self._ttft_s,
        )
