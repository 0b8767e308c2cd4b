"""Where a backend's KV events are to be had: as configured, or as its engine says."""

from typing import Literal

from warmroute.adapters.base import Adapter, Endpoint, EventAddress
from warmroute.adapters.kv_events.address import at_ranks
from warmroute.proxy.config.backend import KVEventsConfig
from warmroute.proxy.fleet.ranks import MAX_RANKS


async def find_sources(
    configured: Literal["auto", "off"] | KVEventsConfig,
    adapter: Adapter,
    endpoint: Endpoint,
    num_ranks: int | None = None,
) -> list[EventAddress]:
    """Return an address a data-parallel rank; empty where there are no events.

    An address that is configured stands as it is: it is connected to unless it says
    ``bind: true``, and the engine is not asked. It is that of rank 0; the others are
    at the ports behind it.

    Args:
        configured: ``kv_events`` of the backend.
        adapter: Who asks the engine.
        endpoint: Where it is asked.
        num_ranks: Data-parallel ranks that it is known to have.

    Raises:
        BackendUnavailable: The engine gave no answer in time.
        ProtocolMismatch: It answered something else.
    """
    if isinstance(configured, KVEventsConfig):
        told = configured
        first = EventAddress(told.endpoint, told.replay, told.topic, binds=told.bind)
        return at_ranks(first, min(num_ranks or 1, MAX_RANKS))
    if configured == "off":
        return []
    return await adapter.event_sources(endpoint)
