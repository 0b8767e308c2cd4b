"""What no router can beat: one cache for all engines, and one queue."""

from collections.abc import Sequence
from typing import Protocol

from warmroute.proxy.replay.belady import BeladyCache
from warmroute.proxy.replay.block_cache import BlockCache
from warmroute.proxy.replay.history import History
from warmroute.proxy.replay.prefill_server import DECODE_TOKEN_S, PrefillServer
from warmroute.proxy.replay.served import Served
from warmroute.proxy.replay.setting import Setting
from warmroute.proxy.replay.trace import TraceRequest


class Cache(Protocol):
    """What keeps blocks of prompts."""

    def cached_tokens(self, request: TraceRequest) -> int:
        """Count the prompt tokens that need not be computed."""
        ...

    def admit(self, request: TraceRequest) -> None:
        """Make the full blocks of *request* resident."""
        ...


class PooledFleet:
    """Engines that share one cache and take requests in order as they become free.

    Args:
        setting: The engines.
        block_size: Tokens a block.
        cache: Of all of them.
    """

    __slots__ = ("_cache", "_history", "_servers")

    def __init__(self, setting: Setting, block_size: int, cache: Cache) -> None:
        self._cache = cache
        self._history = History(block_size)
        self._servers = [
            PrefillServer(setting.prefill_rate) for _ in range(setting.backends)
        ]

    def __repr__(self) -> str:
        return f"<PooledFleet {len(self._servers)} engines, {self._cache!r}>"

    def serve(self, request: TraceRequest, now: float) -> Served:
        """Serve *request* by the engine that is free first. O(engines + blocks)."""
        free = [server.free_at for server in self._servers]
        index = free.index(min(free))
        cached = self._cache.cached_tokens(request)
        prompt = request.prompt_tokens
        ttft_s = self._servers[index].serve(prompt - cached, now)
        self._cache.admit(request)
        classes = self._history.enter(request, cached, cached)
        end_s = ttft_s + request.output_tokens * DECODE_TOKEN_S
        return Served(index, prompt, cached, ttft_s, classes, DECODE_TOKEN_S, end_s)


def pooled_cache(setting: Setting, block_size: int) -> PooledFleet:
    """Return the fleet whose one cache is as large as all of theirs."""
    total = setting.backends * setting.capacity_tokens
    return PooledFleet(setting, block_size, BlockCache(block_size, total))


def infinite_cache(setting: Setting, block_size: int) -> PooledFleet:
    """Return the fleet whose one cache never loses a block."""
    return PooledFleet(setting, block_size, BlockCache(block_size, None))


def clairvoyant_cache(
    setting: Setting, block_size: int, future: Sequence[TraceRequest]
) -> PooledFleet:
    """Return the fleet whose one cache knows which blocks *future* will use."""
    total = setting.backends * setting.capacity_tokens
    return PooledFleet(setting, block_size, BeladyCache(block_size, total, future))
