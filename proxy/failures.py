"""The errors that a client gets when a backend does not answer."""

import ssl

from warmroute.policies.errors import ClientError


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
