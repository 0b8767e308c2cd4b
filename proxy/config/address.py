"""Addresses to listen on, as people write them."""

import ipaddress
import re
from dataclasses import dataclass

from warmroute.adapters.caller import is_loopback

_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_ALLOWED = "(allowed: host:port, :port, port, [ipv6]:port)"


@dataclass(frozen=True, slots=True)
class Address:
    """Name a host and port to listen on; an empty host is every interface.

    Port 0 lets the system choose a free port.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read ``host:port``, ``:port``, ``port`` or ``[ipv6]:port``.

        Raises:
            ValueError: The text is none of these; the message says why.
        """
        host, colon, port = text.strip().rpartition(":")
        if not colon and not (port.isascii() and port.isdecimal()):
            raise ValueError(f"no port in '{text}' {_ALLOWED}")
        return cls(_parse_host(host, text), _parse_port(port, text))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def _parse_host(host: str, text: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            raise ValueError(f"'{host[1:-1]}' is no IPv6 address {_ALLOWED}") from None
    if ":" in host:
        raise ValueError(f"'{text}' is ambiguous: put an IPv6 host in brackets")
    if host == "*":
        return ""
    if host and not _HOST_NAME.fullmatch(host):
        raise ValueError(f"'{host}' is no host name {_ALLOWED}")
    return host


def _parse_port(port: str, text: str) -> int:
    if not (port.isascii() and port.isdecimal() and len(port) < 10):
        raise ValueError(f"'{port}' in '{text}' is no port {_ALLOWED}")
    if int(port) > 65535:
        raise ValueError(f"port {port} is out of range (allowed: 0 to 65535)")
    return int(port)
