"""Where a backend is: the parts of its URL, and the trust needed to go there."""

import ssl
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from warmroute.policies.errors import ConfigError

DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Target:
    """Hold the parts of a backend's URL.

    Args:
        scheme: ``http`` or ``https``.
        host: Name or address to connect to and to verify; IPv6 without brackets.
        port: The URL's, or the scheme's default.
        authority: Value of ``Host``: IPv6 in brackets, no default port.
        path_prefix: Goes before each path; empty or ``/like/this``.
    """

    scheme: str
    host: str
    port: int
    authority: str
    path_prefix: str

    @classmethod
    def parse(cls, url: str) -> "Target":
        """Take apart a URL that the configuration has checked."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        default = DEFAULT_PORTS[parts.scheme]
        authority = f"[{host}]" if ":" in host else host
        if parts.port not in (None, default):
            authority += f":{parts.port}"
        prefix = parts.path.rstrip("/")
        return cls(parts.scheme, host, parts.port or default, authority, prefix)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path_prefix}"


@lru_cache(maxsize=64)
def tls_context(ca: str | None, verify: bool) -> ssl.SSLContext:
    """Make, or share, the TLS client context for backends of one trust.

    Args:
        ca: File of PEM certificates to trust instead of the system's.
        verify: False accepts any certificate, for self-signed test set-ups.

    Raises:
        ConfigError: The file cannot be read or holds no certificate.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"tls.ca: cannot load certificates from {ca!r}: {error};"
            " name a readable file of PEM certificates"
        ) from error
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context
