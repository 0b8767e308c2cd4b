"""One open page: the frames that it has still to get."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

MAX_FRAMES: Final = 32


def frame(event: str, value: Any) -> bytes:
    """Return *value* as one server-sent event; made once for all tabs."""
    return b"event: %b\ndata: %b\n\n" % (event.encode(), msgspec.json.encode(value))


class Tab:
    """Hold the frames of one page, 32 at most; who falls behind is let go.

    Args:
        wants_view: Whether the page shows the prefixes.

    Attributes:
        is_open: Whether frames are still taken.
    """

    __slots__ = ("_frames", "_more", "is_open", "wants_view")

    def __init__(self, wants_view: bool = False) -> None:
        self.wants_view = wants_view
        self.is_open = True
        self._frames: list[bytes] = []
        self._more = asyncio.Event()

    def __repr__(self) -> str:
        kind = "open" if self.is_open else "closed"
        return f"<Tab {kind} [Frames: {len(self._frames)}]>"

    def put(self, data: bytes) -> None:
        """Give it a frame; a page that has not read the last 32 is closed."""
        if len(self._frames) >= MAX_FRAMES:
            self.close()
        if self.is_open:
            self._frames.append(data)
            self._more.set()

    def close(self) -> None:
        """Take no more frames; what was not read is dropped."""
        self.is_open = False
        self._frames.clear()
        self._more.set()

    async def batches(self) -> AsyncIterator[bytes]:
        """Iterate over all frames that wait, until the tab is closed."""
        while True:
            await self._more.wait()
            self._more.clear()
            if not self.is_open:
                return
            waiting, self._frames = self._frames, []
            yield b"".join(waiting)
