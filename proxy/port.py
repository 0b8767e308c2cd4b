"""The data port: its listener, its connections, its timers."""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from typing import Final

from warmroute.policies.errors import ClientError
from warmroute.proxy.body_wait import LARGE_BYTES, BodyWait, LargeBodies
from warmroute.proxy.config import Config
from warmroute.proxy.fleet import Fleet
from warmroute.proxy.forward import Exchange
from warmroute.proxy.http.forwarding import Forwarding
from warmroute.proxy.http.head import RequestHead
from warmroute.proxy.http.inbound import ClientConnection, ReadLimits
from warmroute.proxy.http.outbox import Outbox
from warmroute.proxy.http.reply import answer, error_answer
from warmroute.proxy.http.splice import ask_for_usage
from warmroute.proxy.http.upstreams import Upstreams
from warmroute.proxy.http.work import Work
from warmroute.proxy.killer_watch import KillerWatch
from warmroute.proxy.ledger import Ledger
from warmroute.proxy.own import OwnPaths, ReadyAnswer
from warmroute.proxy.process import listen
from warmroute.proxy.prompt import Prompt
from warmroute.proxy.prompt_wait import PromptWait
from warmroute.proxy.queue import HoldQueue
from warmroute.proxy.router import Router
from warmroute.proxy.routing import Plan, Routing
from warmroute.proxy.telemetry import Tracer
from warmroute.proxy.telemetry.request_trace import RequestTrace

logger = logging.getLogger(__name__)

_SWEEP_S: Final = 0.25


class DataPort:
    """Accept clients, and give each request to an exchange.

    One sweep four times a second serves every timeout of every connection, so a
    request costs no timer.
    """

    def __init__(
        self,
        config: Config,
        fleet: Fleet,
        router: Router,
        ledger: Ledger,
        tracer: Tracer | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.fleet = fleet
        self.router = router
        self.ledger = ledger
        self.tracer = tracer
        self.killers: KillerWatch | None = None
        self.clock = clock
        self.outbox = Outbox()
        self.is_draining = False
        self.held_bytes = 0
        self.own = OwnPaths(fleet)
        self.queue: HoldQueue | None = None
        self._large = LargeBodies()
        self._connections: set[ClientConnection] = set()
        self.upstreams = Upstreams(self.outbox)
        self.configure(config)
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()

    def __repr__(self) -> str:
        return f"<DataPort {len(self._connections)} connections>"

    def configure(self, config: Config) -> None:
        """Take over limits and timeouts, at start and on reload."""
        limits, timeouts = config.limits, config.timeouts
        self.connect_s = timeouts.connect_s
        self.first_byte_s = timeouts.first_byte_s
        self.idle_s = timeouts.idle_s
        self.read_limits = ReadLimits(
            limits.head_bytes,
            limits.headers,
            limits.body_bytes,
            timeouts.header_s,
            timeouts.body_s,
            timeouts.keep_alive_s,
            timeouts.idle_s,
            limits.buffered_bytes,
        )
        self._max_connections = limits.connections
        self.scheme = b"https" if config.tls is not None else b"http"
        self.injects_usage = config.truth.usage == "inject"
        self.retry_attempts = config.retry.attempts
        self.upstreams.configure(timeouts.pool_idle_s)
        self.forwarding = Forwarding(config.headers.strip, self.scheme)

    # lifecycle

    async def start(
        self, host: str, port: int, tls: ssl.SSLContext | None
    ) -> tuple[str, int]:
        """Listen; returns the address, with the real port where 0 was asked."""
        self._server, address = await listen(
            lambda: ClientConnection(self), host, port, tls
        )
        self._sweep()
        return address

    def refuse_new(self) -> None:
        """Answer no more requests on kept connections, and accept no others."""
        self.is_draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.drain()

    async def drained(self, timeout_s: float) -> bool:
        """Wait until no client is left; False if some were when time ran out."""
        if self._connections:
            self._empty.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._empty.wait()
            except TimeoutError:
                return False
        return True

    def close(self) -> None:
        """Tell the clients that are left, and close everything."""
        if self._server is not None:
            self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._connections):
            connection.shut_down()
        self.upstreams.close()
        self._large.close()

    def _sweep(self) -> None:
        now = self.clock()
        for connection in [one for one in self._connections if one.deadline < now]:
            try:
                connection.expire()
            except Exception:
                logger.exception("sweep_failed")
        self.upstreams.sweep(now)
        self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    # what connections ask

    def opened(self, connection: ClientConnection) -> bool:
        """Count a new connection; False when there are too many."""
        self._connections.add(connection)
        return len(self._connections) <= self._max_connections

    def closed(self, connection: ClientConnection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def refused(self, error: ClientError) -> None:
        """Count a request that was answered without a backend."""
        self.ledger.rejected(error.code)

    def work(
        self, connection: ClientConnection, head: RequestHead, body: bytes
    ) -> Work:
        """Make the work that answers a request."""
        is_read = head.method == b"GET" or head.method == b"HEAD"
        if is_read and (own := self.own.answer(head)) is not None:
            keeps_alive = head.keeps_alive
            reply = answer(
                *own,
                head.request_id,
                close=not keeps_alive,
                extra=self.own.extra,
                bodiless=head.method == b"HEAD",
            )
            return ReadyAnswer(connection, reply, keeps_alive=keeps_alive)
        now, trace = self.clock(), None
        if self.tracer is not None:
            trace = self.tracer.start(head, now, connection.peer)
        return self.routed(connection, head, body, None, trace, now)

    def routed(
        self,
        connection: ClientConnection,
        head: RequestHead,
        body: bytes,
        prompt: Prompt | None,
        trace: RequestTrace | None,
        started_at: float,
        *,
        is_new: bool = False,
    ) -> Work:
        """Make the work that answers a request, or that waits for its prompt first.

        Without a *prompt* the body is read. One that is *new* is made exact, which
        may have to be waited for; any other is as it will be.
        """
        try:
            if prompt is None:
                if len(body) > LARGE_BYTES:
                    return BodyWait(
                        self, connection, head, body, self._large, trace, started_at
                    )
                prompt, is_new = self.router.read(head, body), True
            if is_new:
                if self.killers is not None:
                    self.killers.see(prompt)
                exact = self.router.exact
                if exact is not None and (pending := exact.begin(prompt, body)):
                    return PromptWait(
                        self, connection, head, body, prompt, pending, trace, started_at
                    )
            if self.queue is not None:
                return self.queue.admit(
                    self, connection, head, body, prompt, trace, started_at
                )
            return self.exchange(connection, head, body, prompt, trace, started_at)
        except ClientError as refusal:
            error = refusal
        except Exception:
            logger.exception(
                "request_broke", extra={"request_id": head.request_id.decode()}
            )
            error = ClientError(500, "internal_error", "the proxy failed; see its log")
        self.refused(error)
        self.trace_refusal(trace, head, connection.peer, started_at, error)
        keeps_alive = head.keeps_alive
        reply = error_answer(error, head.request_id, close=not keeps_alive)
        return ReadyAnswer(connection, reply, keeps_alive=keeps_alive)

    def exchange(
        self,
        connection: ClientConnection,
        head: RequestHead,
        body: bytes,
        prompt: Prompt,
        trace: RequestTrace | None,
        started_at: float,
        plan: Plan | None = None,
    ) -> Exchange:
        """Make the work that sends a request where *plan* says, or the router."""
        if plan is not None:
            now, routing = plan.query.now, self.router.dispatch(plan)
        else:
            now = started_at if self.router.exact is None else self.clock()
            routing = self.router.route(head, prompt, now)
        if trace is not None:
            routing.trace = trace
            size = routing.backend.block_size
            trace.route(routing.decision, now, self.clock(), block_size=size)
        asks_usage = self.injects_usage and prompt.can_inject_usage
        if asks_usage:
            body = ask_for_usage(body)
        return Exchange(
            self, connection, head, body, asks_usage, routing, started_at, now
        )

    def trace_refusal(
        self,
        trace: RequestTrace | None,
        head: RequestHead,
        peer: bytes,
        started_at: float,
        error: ClientError,
    ) -> None:
        """End the spans of a request that never was an exchange."""
        if trace is None and self.tracer is not None:
            trace = self.tracer.start_late(head, started_at, peer)
        if trace is not None:
            trace.end(self.clock(), error.status, error_type=error.code)

    # what exchanges ask

    def abandoned(self, routing: Routing) -> None:
        """Abort by id too, where closing the socket is not enough (SGLang, n > 1)."""
        if routing.abort_id is not None:
            self.fleet.abort(routing.backend, routing.abort_id)
