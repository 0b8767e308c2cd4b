"""Server-sent events on one response."""

import msgspec
from aiohttp import web

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
_DONE = b"data: [DONE]\n\n"


class EventStream:
    """Write JSON events; the head goes out with the first of them.

    A request that fails before its first token so gets a status of its own, and a
    router in front may still send it elsewhere.
    """

    __slots__ = ("_request", "response")

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response = web.StreamResponse(headers=_HEADERS)

    @property
    def is_begun(self) -> bool:
        """Whether the client has got anything."""
        return self.response.prepared

    async def send(self, event: object) -> None:
        """Send one event; waits while the client reads too slowly."""
        if not self.is_begun:
            await self.response.prepare(self._request)
        await self.response.write(b"data: %b\n\n" % msgspec.json.encode(event))

    async def end(self) -> None:
        """Send the mark of a whole stream and end it."""
        await self.response.write(_DONE)
        await self.response.write_eof()

    async def break_off(self, event: object) -> None:
        """Send an error as the last event and end the stream without the mark."""
        await self.send(event)
        self.response.force_close()
        await self.response.write_eof()
