"""A request whose body is too large to be read on the event loop."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

from warmroute.proxy.http.head import RequestHead
from warmroute.proxy.http.inbound import ClientConnection
from warmroute.proxy.prompt import Prompt, PromptReader
from warmroute.proxy.prompt.bodies import Body
from warmroute.proxy.prompt.reader import Parsed, parse
from warmroute.proxy.prompt.shapes import Shape, find_shape
from warmroute.proxy.prompt_wait import TaskWait
from warmroute.proxy.telemetry.request_trace import RequestTrace

if TYPE_CHECKING:
    from warmroute.proxy.port import DataPort

logger = logging.getLogger(__name__)

# Of bodies that are many small messages or ids, the dearest per byte, this is some
# 5 ms; of long texts half a millisecond.
LARGE_BYTES: Final = 1 << 18
NUM_THREADS: Final = 2


class LargeBodies:
    """Read bodies in threads, `NUM_THREADS` at a time; the others wait in line.

    The decoder itself holds the interpreter's lock from a body's first byte to its
    last; what is made of its result does not.
    """

    __slots__ = ("_executor",)

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(NUM_THREADS, "read-body")

    def __repr__(self) -> str:
        return f"<LargeBodies {NUM_THREADS} threads>"

    async def read(
        self, prompts: PromptReader, head: RequestHead, body: bytes
    ) -> Prompt:
        """Return what `PromptReader.read` does.

        The line lets go of the body of one that is cancelled, which nobody counts any
        more; the executor keeps cancelled jobs until their turn comes.
        """
        line = [body]
        job = partial(_parse_next, find_shape(head.path), head, line)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._executor, job)
        finally:
            line.clear()
        return found if isinstance(found, Prompt) else prompts.describe(found, body)

    def close(self) -> None:
        """Drop what has not begun; do not wait for the rest."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _parse_next(shape: Shape, head: RequestHead, line: list[bytes]) -> Prompt | Parsed:
    """Parse the body that waits; nobody asks for the result of one that was let go."""
    return _parse(shape, head, line.pop() if line else b"")


def _parse(shape: Shape, head: RequestHead, body: bytes) -> Prompt | Parsed:
    """Parse *body*, and let go of its million messages where nobody waits for it."""
    found = parse(shape, head.path, head.content_type, head.content_encoding, body)
    if not isinstance(found, Prompt):
        fields = found[1]
        for name in fields.__struct_fields__[len(Body.__struct_fields__) :]:
            setattr(fields, name, None)
    return found


class BodyWait(TaskWait):
    """Wait for a body to be read; then the request goes on as if it had been at once.

    Args:
        bodies: Who reads it; the others are as for `Waiting`.
    """

    __slots__ = ("_bodies",)

    def __init__(
        self,
        port: "DataPort",
        client: ClientConnection,
        head: RequestHead,
        body: bytes,
        bodies: LargeBodies,
        trace: RequestTrace | None,
        started_at: float,
    ) -> None:
        super().__init__(port, client, head, body, Prompt("none"), trace, started_at)
        self._bodies = bodies

    def __repr__(self) -> str:
        return f"<BodyWait {self.head.request_id.decode()} {len(self._body)} bytes>"

    async def _wait(self) -> None:
        prompts = self._port.router.prompts
        try:
            self.prompt = await self._bodies.read(prompts, self.head, self._body)
        except Exception:
            logger.exception("request_broke")
            self._client.abort()
            return
        self._go_on(partial(self._port.routed, is_new=True))
