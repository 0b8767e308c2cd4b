"""What the query of an admin request asks for."""

from aiohttp import web

from warmroute.policies.errors import ClientError


def read_number(request: web.Request, key: str, default: int, most: int) -> int:
    """Return the number of *key*, *default* where the query has none.

    Raises:
        ClientError: 400, it is none from 1 to *most*.
    """
    text = request.query.get(key, str(default))
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if not 1 <= value <= most:
        raise ClientError(
            400, "query_invalid", f"query {key}={text[:64]!r} (allowed: 1 to {most})"
        )
    return value


def check_query(request: web.Request, *allowed: str) -> None:
    """Refuse a query with other keys than those *allowed*.

    Raises:
        ClientError: 400, it has one; a filter that is passed over would show the
            wrong things.
    """
    for key in request.query:
        if key not in allowed:
            known = ", ".join(allowed)
            raise ClientError(
                400, "query_invalid", f"query key {key[:64]!r} (allowed: {known})"
            )
