"""A request whose prompt is still being tokenized."""

import asyncio
from typing import TYPE_CHECKING

from warmroute.policies.errors import ClientError
from warmroute.proxy.failures import client_left, shutting_down
from warmroute.proxy.http.head import RequestHead
from warmroute.proxy.http.inbound import ClientConnection
from warmroute.proxy.http.reply import error_answer
from warmroute.proxy.prompt import Prompt
from warmroute.proxy.prompt.pending import Pending
from warmroute.proxy.telemetry.request_trace import RequestTrace
from warmroute.proxy.waiting import Waiting

if TYPE_CHECKING:
    from warmroute.proxy.port import DataPort


class PromptWait(Waiting):
    """Wait for a prompt, then hand the connection to what answers the request.

    Nothing is reserved meanwhile, so a client that goes leaves nothing behind. The
    wait has a bound of its own; see `Pending.finish`. The work of a ClientConnection.

    Args:
        pending: The tokens on their way; the others are as for `Waiting`.
    """

    __slots__ = ("_pending", "_task")

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
        super().__init__(port, client, head, body, prompt, trace, started_at)
        self._pending = pending
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<PromptWait {self.head.request_id.decode()} {self._pending!r}>"

    def begin(self) -> None:
        """Start to wait."""
        super().begin()
        self._task = asyncio.get_running_loop().create_task(self._wait())

    def client_gone(self) -> None:
        """Give up."""
        self._give_up(client_left())

    def interrupted(self) -> None:
        """End because the process does."""
        error = shutting_down()
        self._give_up(error)
        self._client.write(error_answer(error, self.head.request_id, close=True))
        self._client.finished(keep_alive=False)

    def _give_up(self, error: ClientError) -> None:
        if self._task is not None:
            self._task.cancel()
        self._count_refused(error)

    async def _wait(self) -> None:
        await self._pending.finish()
        self._go_on(self._port.routed)
