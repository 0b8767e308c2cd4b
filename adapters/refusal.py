"""Refusals of the servers that aiohttp serves, in OpenAI's error shape."""

import msgspec
from aiohttp import hdrs, web

from warmroute.adapters.error_shape import describe_error
from warmroute.policies.errors import ClientError

_CODES = {404: "path_not_found", 405: "method_not_allowed", 413: "body_too_large"}
_MAX_PATH = 200


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


def refuse_http(
    error: web.HTTPException, request: web.Request, max_body_bytes: int
) -> web.Response:
    """Return the answer that tells what aiohttp itself refuses."""
    message = f"{request.method} {request.path[:_MAX_PATH]}: {error.reason.lower()}"
    if error.status == 413:
        message += f" (allowed: {max_body_bytes} bytes)"
    code = _CODES.get(error.status, "bad_request")
    response = refuse(ClientError(error.status, code, message))
    if hdrs.ALLOW in error.headers:
        response.headers[hdrs.ALLOW] = error.headers[hdrs.ALLOW]
    return response
