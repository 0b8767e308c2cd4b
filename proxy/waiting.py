"""A request whose prompt is still being tokenized."""

import asyncio
import logging
from typing import TYPE_CHECKING

from warmroute.policies.errors import ClientError
from warmroute.proxy.http.head import RequestHead
from warmroute.proxy.http.inbound import ClientConnection
from warmroute.proxy.http.reply import error_answer
from warmroute.proxy.prompt import Prompt
from warmroute.proxy.prompt.pending import Pending
from warmroute.proxy.telemetry.request_trace import RequestTrace

if TYPE_CHECKING:
    from warmroute.proxy.port import DataPort

logger = logging.getLogger(__name__)

_CLIENT_GONE = 499


class PromptWait:
    """Wait for a prompt, then hand the connection to what answers the request.

    Nothing is reserved meanwhile, so a client that goes leaves nothing behind. The
    wait has a bound of its own; see `Pending.finish`.
    """

    __slots__ = (
        *("_body", "_client", "_head", "_pending", "_port"),
        *("_prompt", "_started_at", "_task", "_trace"),
    )

    def __init__(
        self,
        port: "DataPort",
        client: ClientConnection,
        head: RequestHead,
        body: bytes,
        prompt: Prompt,
        pending: Pending,
        trace: RequestTrace | None,
        started_at: float,
    ) -> None:
        self._port = port
        self._client = client
        self._head = head
        self._body = body
        self._prompt = prompt
        self._pending = pending
        self._trace = trace
        self._started_at = started_at
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<PromptWait {self._head.request_id.decode()} {self._pending!r}>"

    def begin(self) -> None:
        """Start to wait."""
        self._client.deadline = float("inf")
        self._task = asyncio.get_running_loop().create_task(self._go_on())

    def client_gone(self) -> None:
        """Give up."""
        self._give_up(ClientError(_CLIENT_GONE, "client_gone", "the client left"))

    def client_writable(self, writable: bool) -> None:
        """Nothing is written yet."""

    def expired(self) -> None:
        """Nothing here expires."""

    def interrupted(self) -> None:
        """End because the process does."""
        error = ClientError(503, "draining", "the proxy is shutting down")
        self._give_up(error)
        self._client.write(error_answer(error, self._head.request_id, close=True))
        self._client.finished(keep_alive=False)

    def _give_up(self, error: ClientError) -> None:
        if self._task is not None:
            self._task.cancel()
        self._port.refused(error)
        if self._trace is not None:
            self._trace.end(self._port.clock(), error.status, error_type=error.code)

    async def _go_on(self) -> None:
        await self._pending.finish()
        try:
            self._client.hand_over(
                self._port.routed(
                    self._client,
                    self._head,
                    self._body,
                    self._prompt,
                    self._trace,
                    self._started_at,
                )
            )
        except Exception:
            logger.exception("request_broke")
            self._client.abort()
