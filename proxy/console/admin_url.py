"""The address of an admin port, as people copy it."""

from typing import Final

_OWN: Final = frozenset({"api", "metrics", "livez", "readyz"})


def admin_base(url: str) -> str:
    """Return *url* without a path of the admin port that was copied with it.

    ``http://h:9090/api/state`` is ``http://h:9090``. A prefix in front stays: a
    reverse proxy may have put it there.
    """
    scheme, mark, rest = url.rpartition("://")
    authority, *steps = rest.split("#")[0].split("?")[0].rstrip("/").split("/")
    kept = [authority]
    for step in steps:
        if step in _OWN:
            break
        kept.append(step)
    return f"{scheme}{mark}{'/'.join(kept)}"
