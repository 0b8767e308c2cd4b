"""Where an engine publishes its KV events, and which side has to bind."""

from dataclasses import dataclass, replace
from urllib.parse import urlsplit

_MAX_PORT = 65_535
_ALLOWED = "(allowed: tcp://host:port, ipc://path)"
_EVERYWHERE = ("*", "0.0.0.0", "[::]", "::")  # noqa: S104 - read, never bound


@dataclass(frozen=True, slots=True)
class EventAddress:
    """One publisher: the events of one data-parallel rank of one engine.

    Args:
        endpoint: ZMQ address of the events.
        replay: ZMQ address that sends them again; None when there is none.
        topic: Topic that they carry; empty takes all.
        rank: Data-parallel rank.
        binds: Whether the subscriber binds, because the publisher connects.
    """

    endpoint: str
    replay: str | None = None
    topic: str = ""
    rank: int = 0
    binds: bool = False


def fault_of(text: str) -> str | None:
    """Say why nobody could ever bind or connect to *text*; None if somebody could."""
    scheme, _, rest = text.partition("://")
    if scheme not in ("tcp", "ipc") or not rest or any(c.isspace() for c in rest):
        return f"'{text}' is no ZMQ address {_ALLOWED}"
    host, _, port = rest.rpartition(":")
    if scheme == "ipc":
        return None
    is_number = port.isascii() and port.isdecimal() and len(port) < 10
    if not (is_number and 1 <= int(port) <= _MAX_PORT):
        return f"'{text}' has no port from 1 to {_MAX_PORT} {_ALLOWED}"
    return None if host else f"'{text}' has no host {_ALLOWED}"


def resolve(address: EventAddress, host: str) -> EventAddress:
    """Return *address* as it is reached from here.

    Engines print what they were told. A publisher on every interface binds, and is
    connected to at the engine's *host*; one with a concrete host connects to it, so
    that the subscriber has to bind there. A replay socket always binds.
    """
    endpoint = address.endpoint
    if endpoint.startswith("tcp://"):
        if _is_everywhere(endpoint):
            endpoint = _at(endpoint, host)
        else:
            address = replace(address, binds=True)
    replay = address.replay
    if replay is not None and replay.startswith("tcp://") and _is_everywhere(replay):
        replay = _at(replay, host)
    return replace(address, endpoint=endpoint, replay=replay)


def _is_everywhere(endpoint: str) -> bool:
    return endpoint.removeprefix("tcp://").rpartition(":")[0] in _EVERYWHERE


def _at(endpoint: str, host: str) -> str:
    port = endpoint.rpartition(":")[2]
    return f"tcp://{host}:{port}"


def at_ranks(address: EventAddress, num_ranks: int) -> list[EventAddress]:
    """Return where each rank publishes, given the *address* of the first.

    Engines count ports up a rank. One without a port has no others.
    """
    ranks = [address]
    for rank in range(1, num_ranks):
        endpoint = _port_plus(address.endpoint, rank)
        if endpoint is None:
            break
        replay = address.replay and _port_plus(address.replay, rank)
        ranks.append(replace(address, endpoint=endpoint, replay=replay, rank=rank))
    return ranks


def _port_plus(endpoint: str, count: int) -> str | None:
    start, _, port = endpoint.rpartition(":")
    if not (endpoint.startswith("tcp://") and port.isascii() and port.isdecimal()):
        return None
    number = int(port) + count
    return f"{start}:{number}" if number <= _MAX_PORT else None


def host_of(url: str) -> str:
    """Return the host of a backend's URL, as ZMQ writes it."""
    host = urlsplit(url).hostname or "127.0.0.1"
    return f"[{host}]" if ":" in host else host
