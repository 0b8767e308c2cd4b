"""One request that waits for room on a backend. The work of a ClientConnection."""

import logging
from typing import TYPE_CHECKING

from warmroute.policies.errors import ClientError
from warmroute.proxy.http.head import RequestHead
from warmroute.proxy.http.inbound import ClientConnection
from warmroute.proxy.http.reply import error_answer
from warmroute.proxy.prompt import Prompt
from warmroute.proxy.routing import Plan
from warmroute.proxy.telemetry.request_trace import RequestTrace

if TYPE_CHECKING:
    from warmroute.proxy.port import DataPort
    from warmroute.proxy.queue.queue import HoldQueue

logger = logging.getLogger(__name__)

_CLIENT_GONE = 499


class Held:
    """Wait for room, then hand the connection to the exchange.

    Nothing is reserved meanwhile; what its line counts for it goes with it, on
    every way out.

    Args:
        queue: Who holds it.
        port: The listener it came through.
        client: Who asked, and waits.
        head: The client's head.
        body: The body as received.
        prompt: What was read of it.
        trace: Its spans, when it is sampled.
        started_at: When it had arrived.

    Attributes:
        plan: The last one made for it.
    """

    __slots__ = (
        *("_body", "_client", "_port", "_queue", "_trace", "head", "key"),
        *("number", "plan", "prompt", "since", "started_at", "uncached_tokens"),
    )

    def __init__(
        self,
        queue: "HoldQueue",
        port: "DataPort",
        client: ClientConnection,
        head: RequestHead,
        body: bytes,
        prompt: Prompt,
        trace: RequestTrace | None,
        started_at: float,
    ) -> None:
        self._queue = queue
        self._port = port
        self._client = client
        self.head = head
        self._body = body
        self.prompt = prompt
        self._trace = trace
        self.started_at = started_at
        self.since = started_at
        self.number = 0
        self.plan: Plan | None = None
        self.key = 0.0
        self.uncached_tokens = 0

    def __repr__(self) -> str:
        return f"<Held {self.head.request_id.decode()} {self.uncached_tokens} tokens>"

    # Work

    def begin(self) -> None:
        """Wait; the queue has its own clock."""
        self._client.deadline = float("inf")

    def client_gone(self) -> None:
        """Give up the place."""
        if self._queue.left(self):
            self._end(ClientError(_CLIENT_GONE, "client_gone", "the client left"))

    def client_writable(self, writable: bool) -> None:
        """Nothing is written yet."""

    def expired(self) -> None:
        """Nothing here expires."""

    def interrupted(self) -> None:
        """End because the process does."""
        if self._queue.left(self):
            error = ClientError(503, "draining", "the proxy is shutting down")
            self.refuse(error, keeps_alive=False)

    # what the queue says

    def send(self, plan: Plan) -> None:
        """Go where *plan* says."""
        try:
            exchange = self._port.exchange(
                self._client,
                self.head,
                self._body,
                self.prompt,
                self._trace,
                self.started_at,
                plan,
            )
            self._client.hand_over(exchange)
        except Exception:
            logger.exception("request_broke")
            self._client.abort()

    def refuse(self, error: ClientError, *, keeps_alive: bool = True) -> None:
        """Answer with an error of ours."""
        self._end(error)
        keeps_alive = (
            keeps_alive and self.head.keeps_alive and not self._port.is_draining
        )
        reply = error_answer(error, self.head.request_id, close=not keeps_alive)
        self._client.write(reply)
        self._client.finished(keep_alive=keeps_alive)

    def _end(self, error: ClientError) -> None:
        self._port.refused(error)
        if self.plan is not None:
            self._queue.record_refused(self.plan, error, self.started_at)
        if self._trace is not None:
            self._trace.end(self._port.clock(), error.status, error_type=error.code)
