"""Where vLLM says that it publishes KV events."""

from collections.abc import Iterator, Mapping
from typing import TypeGuard

from warmroute.adapters.kv_events.address import EventAddress, resolve

PATH = "/kv_event_sources"
MAX_RANKS = 1024

_SCHEMES = ("tcp://", "ipc://")


def read_sources(answer: Mapping[str, object], host: str) -> list[EventAddress]:
    """Read what ``/kv_event_sources`` answered; what makes no sense is left out.

    Args:
        answer: One publisher's settings a data-parallel rank. Their ports are those
            of the rank already.
        host: Where the engine is reached.
    """
    found = {one.rank: one for one in _sources(answer)}
    return [resolve(found[rank], host) for rank in sorted(found)][:MAX_RANKS]


def _sources(answer: Mapping[str, object]) -> Iterator[EventAddress]:
    for rank, settings in answer.items():
        if not (rank.isascii() and rank.isdecimal() and isinstance(settings, dict)):
            continue
        endpoint, replay = settings.get("endpoint"), settings.get("replay_endpoint")
        topic = settings.get("topic")
        if _is_on(settings) and _is_address(endpoint):
            yield EventAddress(
                endpoint,
                replay if _is_address(replay) else None,
                topic if isinstance(topic, str) else "",
                int(rank[:9]),
            )


def _is_on(settings: Mapping[str, object]) -> bool:
    is_enabled = settings.get("enable_kv_cache_events", True) is True
    return is_enabled and settings.get("publisher", "zmq") == "zmq"


def _is_address(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value.startswith(_SCHEMES)
