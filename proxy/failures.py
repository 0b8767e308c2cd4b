"""The errors of a request that does not come to a good end."""

import ssl
from typing import Final

from warmroute.policies.errors import ClientError

CLIENT_GONE: Final = 499
"""The status in the records of a request whose client left; nobody gets it."""


def connect_failure(error: OSError) -> str:
    """Name the reason why no connection could be opened."""
    if isinstance(error, TimeoutError):
        return "connect_timeout"
    if isinstance(error, ssl.SSLError):
        verified = not isinstance(error, ssl.SSLCertVerificationError)
        return "tls_failed" if verified else "bad_certificate"
    return "refused" if isinstance(error, ConnectionRefusedError) else "unreachable"


def stood_still(backend: str) -> ClientError:
    """Make the error for an answer that did not move on in time."""
    return ClientError(
        504,
        "upstream_timeout",
        f"backend {backend} sent nothing for too long "
        "(timeouts.first_byte_s, timeouts.idle_s)",
    )


def unreachable(backend: str, reason: str) -> ClientError:
    """Make the error for a request that no backend took."""
    return ClientError(
        502,
        "upstream_unreachable",
        f"backend {backend} did not answer ({reason}), and no "
        "other could take the request",
        retry_after_s=1,
    )


def lost(backend: str, reason: str) -> ClientError:
    """Make the error for an answer that broke off."""
    return ClientError(
        502,
        "upstream_lost",
        f"backend {backend} failed during the answer ({reason})",
    )


def client_left() -> ClientError:
    """Make the error for a request whose client is gone."""
    return ClientError(CLIENT_GONE, "client_gone", "the client left")


def shutting_down() -> ClientError:
    """Make the error for a request that the end of the process cuts short."""
    return ClientError(503, "draining", "the proxy is shutting down")
