"""Where a backend's KV events are to be had: as configured, or as its engine says."""

from typing import Literal

from warmroute.adapters.base import Adapter, Endpoint, EventAddress
from warmroute.proxy.config.backend import KVEventsConfig


async def find_sources(
    configured: Literal["auto", "off"] | KVEventsConfig,
    adapter: Adapter,
    endpoint: Endpoint,
) -> list[EventAddress]:
    """Return an address a data-parallel rank; empty where there are no events.

    An address that is configured stands as it is: it is connected to unless it says
    ``bind: true``, and the engine is not asked.

    Raises:
        BackendUnavailable: The engine gave no answer in time.
        ProtocolMismatch: It answered something else.
    """
    if isinstance(configured, KVEventsConfig):
        told = configured
        return [EventAddress(told.endpoint, told.replay, told.topic, binds=told.bind)]
    if configured == "off":
        return []
    return await adapter.event_sources(endpoint)
