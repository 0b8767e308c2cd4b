"""``/api/conductor``: what it did and why, and its kill switch."""

from typing import Protocol

import msgspec
from aiohttp import hdrs, web


class Conductor(Protocol):
    """What is shown and stopped."""

    def describe(self) -> dict[str, object]:
        """Return the JSON of its state and newest actions."""
        ...

    def start(self) -> None:
        """Let it act again."""
        ...

    async def stop(self) -> None:
        """Let it act no more, and let go of what it holds."""
        ...


def conductor_routes(conductor: Conductor) -> list[web.RouteDef]:
    """Return the routes over *conductor*."""

    async def show(request: web.Request) -> web.Response:
        return _json(conductor.describe())

    async def start(request: web.Request) -> web.Response:
        conductor.start()
        return _json(conductor.describe())

    async def stop(request: web.Request) -> web.Response:
        await conductor.stop()
        return _json(conductor.describe())

    return [
        web.get("/api/conductor", show),
        web.post("/api/conductor/start", start),
        web.post("/api/conductor/stop", stop),
    ]


def _json(content: object) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(content),
        content_type="application/json",
        headers={hdrs.CACHE_CONTROL: "no-store"},
    )
