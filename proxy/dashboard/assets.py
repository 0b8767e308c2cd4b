"""The files of the page, read once; they are part of the package."""

import gzip
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

PAGE: Final = "index.html"

_TYPES: Final = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}

# Everything comes from this server; nothing inline runs, nobody frames the page.
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Asset(NamedTuple):
    """One file, as it is and compressed."""

    content_type: str
    body: bytes
    packed: bytes
    etag: str


@cache
def read_assets() -> Mapping[str, Asset]:
    """Return every file by its path below ``static/``."""
    return dict(_read(files("warmroute.proxy.dashboard") / "static", ""))


def _read(folder: Traversable, prefix: str) -> list[tuple[str, Asset]]:
    found = []
    for entry in folder.iterdir():
        path = prefix + entry.name
        kind = _TYPES.get(path.rpartition(".")[2])
        if entry.is_dir():
            found += _read(entry, f"{path}/")
        elif kind is not None:
            found.append((path, _asset(kind, entry.read_bytes())))
    return found


def _asset(kind: str, body: bytes) -> Asset:
    digest = hashlib.sha256(body).hexdigest()[:32]
    return Asset(kind, body, gzip.compress(body, mtime=0), f'"{digest}"')
