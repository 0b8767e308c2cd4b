"""The paths of the plugin inside an engine, and how a target may spell them."""

import re
from typing import Final
from urllib.parse import unquote_to_bytes

DOOR: Final = "/warmroute/"

_NAME: Final = DOOR.strip("/").encode()
_SEPARATORS: Final = re.compile(rb"[/\\]+")
_DECODINGS: Final = 3


def leads_to_door(target: bytes) -> bool:
    """Tell whether some server could read *target* as a path under `DOOR`.

    Servers on the way decode, resolve dots, join slashes, cut path parameters or fold
    case, each in its own way, so any reading counts. Where a path climbs (``..``) or
    begins like an authority (``//``), the name counts in every place: a path prefix
    in front of the engine may be what is climbed out of.

    Args:
        target: In origin form, with or without its query.
    """
    path = target.partition(b"?")[0].partition(b"#")[0]
    if b"%" not in path and _NAME not in path.lower():
        return False  # as most: no spelling without either
    for _ in range(_DECODINGS):
        path = unquote_to_bytes(path)
    parts = [part.partition(b";")[0].lower() for part in _SEPARATORS.split(path)]
    names = [part for part in parts if part not in (b"", b".")]
    if b".." in names or path[:2] in (b"//", b"\\\\", b"/\\", b"\\/"):
        return _NAME in names
    return names[:1] == [_NAME]
