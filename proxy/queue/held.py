"""One request that waits for room on a backend. The work of a ClientConnection."""

from functools import partial
from typing import TYPE_CHECKING

from warmroute.policies.errors import ClientError
from warmroute.proxy.failures import client_left, shutting_down
from warmroute.proxy.http.head import RequestHead
from warmroute.proxy.http.inbound import ClientConnection
from warmroute.proxy.http.reply import error_answer
from warmroute.proxy.prompt import Prompt
from warmroute.proxy.routing import Plan
from warmroute.proxy.telemetry.request_trace import RequestTrace
from warmroute.proxy.waiting import Waiting

if TYPE_CHECKING:
    from warmroute.proxy.port import DataPort
    from warmroute.proxy.queue.queue import HoldQueue


class Held(Waiting):
    """Wait for room, then hand the connection to the exchange.

    Nothing is reserved meanwhile; what its line counts for it goes with it, on
    every way out.

    Args:
        queue: Who holds it, by its own clock; the others are as for `Waiting`.

    Attributes:
        plan: The last one made for it.
    """

    __slots__ = ("_queue", "key", "number", "plan", "since", "uncached_tokens")

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
        super().__init__(port, client, head, body, prompt, trace, started_at)
        self._queue = queue
        self.since = started_at
        self.number = 0
        self.plan: Plan | None = None
        self.key = 0.0
        self.uncached_tokens = 0

    def __repr__(self) -> str:
        return f"<Held {self.head.request_id.decode()} {self.uncached_tokens} tokens>"

    # Work

    def client_gone(self) -> None:
        """Give up the place."""
        if self._queue.left(self):
            self._end(client_left())

    def interrupted(self) -> None:
        """End because the process does."""
        if self._queue.left(self):
            self.refuse(shutting_down(), keeps_alive=False)

    # what the queue says

    def send(self, plan: Plan) -> None:
        """Go where *plan* says."""
        self._go_on(partial(self._port.exchange, plan=plan))

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
        self._count_refused(error)
        if self.plan is not None:
            self._queue.record_refused(self.plan, error, self.started_at)
