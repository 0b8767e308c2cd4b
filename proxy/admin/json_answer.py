"""The JSON answers of the admin port, which nobody in between may keep."""

import msgspec
from aiohttp import hdrs, web

SERVER_NAME = "warmroute"


def json_answer(value: object, status: int = 200) -> web.Response:
    """Return the answer that tells *value*."""
    return web.Response(
        body=msgspec.json.encode(value),
        status=status,
        content_type="application/json",
        headers={hdrs.CACHE_CONTROL: "no-store"},
    )
