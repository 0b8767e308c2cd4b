"""What a server may know of its caller: where it calls from, and what it brings.

Whoever listens on loopback without a token admits callers that name it by an address:
a web page could rebind a name of its own to it, but not an address.
"""

import hmac
import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether *host* is an address that only this machine reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_address(host: str) -> bool:
    """Return whether a Host header is localhost or an IP address, or empty."""
    is_bracketed = host.startswith("[")
    name = host[1:].partition("]")[0] if is_bracketed else host.partition(":")[0]
    if not host or name.lower() == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def brings(authorization: str, token: bytes) -> bool:
    """Return whether an Authorization header brings *token*; in constant time."""
    scheme, _, given = authorization.partition(" ")
    brought = given.strip().encode(errors="surrogateescape")
    return hmac.compare_digest(brought, token) and scheme.lower() == "bearer"
