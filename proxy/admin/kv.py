"""``POST /api/kv/{verb}``: the levers of the engines' caches."""

from typing import Protocol

import msgspec
from aiohttp import hdrs, web


class Desk(Protocol):
    """What takes the orders."""

    async def fill(self, verb: str, body: bytes) -> dict[str, object]:
        """Do what *body* orders; raises ClientError when it is wrong."""
        ...


def kv_routes(desk: Desk) -> list[web.RouteDef]:
    """Return the routes over *desk*."""

    async def fill(request: web.Request) -> web.Response:
        verb = request.match_info["verb"]
        content = await desk.fill(verb, await request.read())
        return web.Response(
            body=msgspec.json.encode(content),
            content_type="application/json",
            headers={hdrs.CACHE_CONTROL: "no-store"},
        )

    return [web.post("/api/kv/{verb}", fill)]
