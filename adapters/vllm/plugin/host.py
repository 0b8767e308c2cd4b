"""What vLLM's offloading connector has in host memory."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from warmroute.adapters.vllm.plugin.ports import Before


class Chunk(Protocol):
    """One chunk of the host tier (``ChunkStatus``)."""

    ref_cnt: int

    @property
    def is_ready(self) -> bool:
        """Whether it can be read."""
        ...


class HostTier:
    """Look into the host tier, and drop from it.

    Its chunks are named by the same bytes as cached blocks: hash and group.

    Args:
        manager: The connector's ``CPUOffloadingManager``.
        removal: Makes the event that tells of dropped blocks.
    """

    __slots__ = ("_before", "_manager", "_removal")

    def __init__(self, manager: Any, removal: Callable[[bytes], object]) -> None:
        self._manager = manager
        self._removal = removal
        self._before: Before | None = None

    def __repr__(self) -> str:
        return f"<HostTier of {self._manager._num_chunks} chunks>"

    def has(self, block_hash: bytes) -> bool:
        """Tell whether a block can be loaded from here."""
        chunk: Chunk | None = self._manager._policy.get(block_hash)
        return chunk is not None and chunk.is_ready

    def drop(self, block_hash: bytes) -> bool:
        """Drop a block that is not being copied; tell whether it was there."""
        manager = self._manager
        chunk = manager._policy.get(block_hash)
        if chunk is None or chunk.ref_cnt != 0:
            return False
        if self._before is not None:
            self._before(block_hash)
        manager._policy.remove(block_hash)
        manager._free_chunk(chunk)
        manager._num_evictable_cache_chunks -= 1
        if manager.events is not None:
            manager.events.append(self._removal(block_hash))
        return True

    def tell(self, before: Before | None) -> None:
        """Call *before* with each block that comes or goes; None for no more.

        Blocks that make room are told of behind it, because they are chosen as they go.
        A reset of the tier is told to nobody, as vLLM publishes no event of it.
        """
        manager = self._manager
        if self._before is not None:
            del manager.complete_store, manager._policy.evict
        self._before = None
        if before is not None:  # a policy of others may refuse, so it comes first
            manager._policy.evict = _evicting(manager._policy.evict, before)
            manager.complete_store = _completing(manager.complete_store, before)
        self._before = before


def _completing(complete: Callable[..., None], before: Before) -> Callable[..., None]:
    def complete_store(keys: Sequence[bytes], *rest: Any, **options: Any) -> None:
        for key in keys:
            before(key)
        complete(keys, *rest, **options)

    return complete_store


def _evicting(evict: Callable[..., Any], before: Before) -> Callable[..., Any]:
    def evict_and_tell(*arguments: Any, **options: Any) -> Any:
        evicted = evict(*arguments, **options)
        for key, _ in evicted or ():
            before(key, is_on_host=True)
        return evicted

    return evict_and_tell


def host_tier(scheduler: Any) -> HostTier | str:
    """Return the host tier of an engine, or say why it has none."""
    connector = scheduler.connector
    if connector is None:
        return (
            "unsupported: the engine has no host tier; start vLLM with "
            "--kv-transfer-config and OffloadingConnector (docs/vllm-plugin.md)"
        )
    manager = getattr(getattr(connector, "connector_scheduler", None), "manager", None)
    if type(manager).__name__ != "CPUOffloadingManager":
        return (
            f"unsupported: {type(connector).__name__} keeps its blocks elsewhere "
            f"(allowed: OffloadingConnector with a CPU spec)"
        )
    if connector.connector_scheduler.config.blocks_per_chunk != 1:
        return "unsupported: a chunk of the host tier is several blocks (allowed: 1)"
    return tier_of(manager)


def tier_of(manager: Any) -> HostTier:
    """Return the host tier that a ``CPUOffloadingManager`` keeps."""
    kind = importlib.import_module("vllm.v1.kv_offload.base").OffloadingEvent
    medium = manager.medium
    return HostTier(manager, lambda one: kind([one], medium, removed=True))
