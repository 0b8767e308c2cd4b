"""Refusals of the engine's HTTP server, in OpenAI's error shape."""

import msgspec
from aiohttp import hdrs, web

from warmroute.policies.errors import ClientError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    503: "service_unavailable",
}


class BadField(ClientError):
    """A field of the body is refused; *param* names it.

    Args:
        param: Path of the field, such as ``messages[0].content``.
        message: What is wrong with it; the path is put in front.
        code: Stable slug that programs may match on.
    """

    def __init__(self, param: str, message: str, code: str = "invalid_value") -> None:
        super().__init__(400, code, f"{param}: {message}")
        self.param = param


def describe_error(error: ClientError) -> dict[str, object]:
    """Return *error* as ``{"error": {message, type, param, code}}``."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": error.message,
            "type": _TYPES.get(error.status, kind),
            "param": getattr(error, "param", None),
            "code": error.code,
        }
    }


def refuse(error: ClientError) -> web.Response:
    """Return the answer that tells *error*."""
    response = web.Response(
        body=msgspec.json.encode(describe_error(error)),
        status=error.status,
        content_type="application/json",
    )
    if error.status == 401:
        response.headers[hdrs.WWW_AUTHENTICATE] = "Bearer"
    if error.retry_after_s is not None:
        response.headers[hdrs.RETRY_AFTER] = str(error.retry_after_s)
    return response
