"""Where an engine publishes its KV events, and which side has to bind."""

from dataclasses import dataclass, replace
from urllib.parse import urlsplit

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


def host_of(url: str) -> str:
    """Return the host of a backend's URL, as ZMQ writes it."""
    host = urlsplit(url).hostname or "127.0.0.1"
    return f"[{host}]" if ":" in host else host
