"""KV control over HTTP: ``/warmroute/kv/{verb}``.

The same paths, bodies and answers that any engine offers to warmroute; see
`warmroute.adapters.kv_control`.
"""

import msgspec
from aiohttp import hdrs, web

from warmroute.adapters.embedded.server.door import Door
from warmroute.adapters.kv_control import (
    VERBS,
    Capabilities,
    KVControl,
    decode_request,
    perform,
    shape_of,
)
from warmroute.adapters.kv_door import MAX_BODY_BYTES, body_too_long
from warmroute.policies.errors import ClientError

PATH = "/warmroute/kv"


class ControlRoutes:
    """Answer the verbs of one engine to those whom the door admits.

    Args:
        control: Performs the verbs.
        door: Admits or refuses.
    """

    __slots__ = ("_control", "_door")

    def __init__(self, control: KVControl, door: Door) -> None:
        self._control = control
        self._door = door

    async def read(self, request: web.Request) -> web.Response:
        """Answer a verb that only reads, without parameters."""
        verb = self._admit(request)
        if not shape_of(verb).reads:
            raise ClientError(
                405,
                "kv_verb_not_readable",
                f"{verb} changes the cache (allowed: POST); use POST {PATH}/{verb}",
            )
        return await self._answer(verb, b"")

    async def change(self, request: web.Request) -> web.Response:
        """Answer any verb, with the parameters in the body."""
        verb = self._admit(request)
        return await self._answer(verb, await _read_body(request))

    async def _answer(self, verb: str, body: bytes) -> web.Response:
        if self._door.shut is not None:
            answer: msgspec.Struct = Capabilities(
                verbs=dict.fromkeys(VERBS, self._door.shut)
            )
        else:
            answer = await perform(self._control, verb, decode_request(verb, body))
        return web.Response(
            body=msgspec.json.encode(answer), content_type="application/json"
        )

    def _admit(self, request: web.Request) -> str:
        """Return the verb asked for; why the door is shut may be read by anybody."""
        verb = request.match_info["verb"]
        if verb != "capabilities" or self._door.shut is None:
            self._door.check(
                request.method,
                request.headers.get(hdrs.HOST, ""),
                request.headers.get(hdrs.AUTHORIZATION, ""),
                request.content_type,
            )
        return verb


def add_control_routes(app: web.Application, control: KVControl, door: Door) -> None:
    """Offer KV control under ``/warmroute/kv/{verb}``.

    The application must turn a `ClientError` into an answer.
    """
    routes = ControlRoutes(control, door)
    app.router.add_get(f"{PATH}/{{verb}}", routes.read, allow_head=False)
    app.router.add_post(f"{PATH}/{{verb}}", routes.change)


async def _read_body(request: web.Request) -> bytes:
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise body_too_long()
    return bytes(body)
