"""The address of an admin port, as people and the configuration write it."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from warmroute.policies.errors import ConfigError

DEFAULT_ADMIN: Final = "http://127.0.0.1:9090"
ADDRESS_VARIABLE: Final = "WARMROUTE_ADMIN"
"""The same as overrides ``admin`` of the configuration; here it may be a URL, too."""

_OWN: Final = frozenset({"api", "metrics", "livez", "readyz"})
_EVERYWHERE: Final = ("", "0.0.0.0", "[::]")  # noqa: S104 - is asked, not listened on
_MAX_SHOWN: Final = 200


def admin_url(given: str | None, environ: Mapping[str, str]) -> str:
    """Return the URL of the admin port that a flag or a variable names.

    Args:
        given: The flag: host:port or a URL; None takes ``WARMROUTE_ADMIN``, else port
            9090 of this machine. Where a proxy listens everywhere, this machine is
            asked.
        environ: Of the process.

    Raises:
        ConfigError: It is no such address.
    """
    name = "--admin" if given is not None else ADDRESS_VARIABLE
    text = (environ.get(ADDRESS_VARIABLE) or DEFAULT_ADMIN) if given is None else given
    url = admin_base(text if "://" in text else f"http://{text}")
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    host, colon, port = authority.rpartition(":")
    if colon and port and host in _EVERYWHERE:
        url = f"{scheme}://127.0.0.1:{port}{slash}{path}"
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        is_good = False
    if not is_good:
        shown = "".join(one if one.isprintable() else "?" for one in text[:_MAX_SHOWN])
        raise ConfigError(
            f"{name}: {shown!r} is no URL (allowed: host:port, http://host:port, "
            f"https://host:port; default {DEFAULT_ADMIN})"
        )
    return url


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
