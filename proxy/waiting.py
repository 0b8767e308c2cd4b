"""A request that waits before anything is sent for it."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from warmroute.policies.errors import ClientError
from warmroute.proxy.http.head import RequestHead
from warmroute.proxy.http.inbound import ClientConnection
from warmroute.proxy.http.work import Work
from warmroute.proxy.prompt import Prompt
from warmroute.proxy.telemetry.request_trace import RequestTrace

if TYPE_CHECKING:
    from warmroute.proxy.port import DataPort

Maker = Callable[
    [ClientConnection, RequestHead, bytes, Prompt, RequestTrace | None, float], Work
]
"""Makes the work that answers a request, as `DataPort.exchange` does."""

logger = logging.getLogger(__name__)


class Waiting:
    """What all such requests have in common; what they wait for is their own.

    Args:
        port: The listener it came through.
        client: Who asked, and waits.
        head: The client's head.
        body: The body as received.
        prompt: What was read of it.
        trace: Its spans, when it is sampled.
        started_at: When it had arrived.
    """

    __slots__ = (
        *("_body", "_client", "_port", "_trace"),
        *("head", "prompt", "started_at"),
    )

    def __init__(
        self,
        port: "DataPort",
        client: ClientConnection,
        head: RequestHead,
        body: bytes,
        prompt: Prompt,
        trace: RequestTrace | None,
        started_at: float,
    ) -> None:
        self._port = port
        self._client = client
        self.head = head
        self._body = body
        self.prompt = prompt
        self._trace = trace
        self.started_at = started_at

    def begin(self) -> None:
        """Wait; there is no deadline of the connection's."""
        self._client.deadline = float("inf")

    def client_writable(self, writable: bool) -> None:
        """Nothing is written yet."""

    def expired(self) -> None:
        """Nothing here expires."""

    def _go_on(self, make: Maker) -> None:
        """Hand the connection to what answers the request."""
        try:
            work = make(
                self._client,
                self.head,
                self._body,
                self.prompt,
                self._trace,
                self.started_at,
            )
            self._client.hand_over(work)
        except Exception:
            logger.exception("request_broke")
            self._client.abort()

    def _count_refused(self, error: ClientError) -> None:
        """Count a request that ends here, and end its spans."""
        port, client = self._port, self._client
        port.refused(error)
        port.trace_refusal(self._trace, self.head, client.peer, self.started_at, error)
