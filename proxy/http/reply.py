"""Answers that the proxy authors itself, in OpenAI's error shape."""

from typing import Final

import msgspec

from warmroute.adapters.error_shape import describe_error
from warmroute.policies.errors import ClientError

_REASONS: Final = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    413: b"Content Too Large",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
}


def error_body(error: ClientError) -> bytes:
    """Encode *error* as ``{"error": {message, type, param, code}}``."""
    return msgspec.json.encode(describe_error(error))


def error_answer(error: ClientError, request_id: bytes, *, close: bool) -> bytes:
    """Render a whole error answer, with Retry-After where a retry may help."""
    extra = b""
    if error.retry_after_s is not None:
        extra = b"retry-after: %d\r\n" % error.retry_after_s
    return answer(error.status, error_body(error), request_id, close=close, extra=extra)


def answer(
    status: int,
    body: bytes,
    request_id: bytes,
    *,
    close: bool,
    extra: bytes = b"",
    bodiless: bool = False,
) -> bytes:
    """Render a whole JSON answer; *bodiless* keeps the head only (HEAD)."""
    return (
        b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n%b%b%b\r\n%b"
    ) % (
        status,
        _REASONS.get(status, b""),
        len(body),
        b"x-request-id: %b\r\n" % request_id if request_id else b"",
        b"connection: close\r\n" if close else b"",
        extra,
        b"" if bodiless else body,
    )


def error_event(error: ClientError, *, chunked: bool) -> bytes:
    """Render the one SSE event that ends a stream which failed midway.

    The leading blank line ends an event that the engine left unfinished.
    """
    event = b"\n\ndata: %b\n\n" % error_body(error)
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event) if chunked else event
