"""``POST /api/kv/{verb}``: the levers of the engines' caches."""

from typing import Protocol

from aiohttp import web

from warmroute.proxy.admin.json_answer import json_answer


class Desk(Protocol):
    """What takes the orders."""

    async def fill(self, verb: str, body: bytes) -> dict[str, object]:
        """Do what *body* orders; raises ClientError when it is wrong."""
        ...


def kv_routes(desk: Desk) -> list[web.RouteDef]:
    """Return the routes over *desk*."""

    async def fill(request: web.Request) -> web.Response:
        verb = request.match_info["verb"]
        return json_answer(await desk.fill(verb, await request.read()))

    return [web.post("/api/kv/{verb}", fill)]
