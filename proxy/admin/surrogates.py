"""Half characters in JSON, which decoders refuse in words that do not name them."""

import re

_ESCAPE = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_HIGH = range(0xD800, 0xDC00)
_LOW = range(0xDC00, 0xE000)


def lone_surrogate(body: bytes) -> str | None:
    """Say which surrogate of the JSON text *body* stands alone; None if none does."""
    waiting: re.Match[bytes] | None = None
    for escape in _ESCAPE.finditer(body):
        unit = int(escape[1], 16) if escape[1] else 0
        is_next = waiting is not None and waiting.end() == escape.start()
        if unit in _LOW and is_next:
            waiting = None
            continue
        if waiting is not None:
            break
        if unit in _LOW:
            return _told(escape)
        waiting = escape if unit in _HIGH else None
    return None if waiting is None else _told(waiting)


def _told(escape: re.Match[bytes]) -> str:
    return (
        f"{escape[0].decode()} at byte {escape.start()} is a surrogate without its "
        "other half, and no character (allowed: pairs such as \\ud83d\\ude00)"
    )
