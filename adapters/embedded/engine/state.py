"""The memory of an engine: pages, what they hold, and who uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from warmroute.adapters.embedded.engine.contents import BlockContents, KVObserver
from warmroute.adapters.embedded.engine.host_pages import HostPages, PageStore
from warmroute.adapters.embedded.engine.options import EngineOptions
from warmroute.adapters.embedded.engine.prefix_cache import PrefixCache
from warmroute.policies.eviction.registry import create, takes
from warmroute.policies.kv.blocks import root_hash
from warmroute.policies.kv.pool import BlockPool
from warmroute.policies.kv.retention import Retention

if TYPE_CHECKING:
    from warmroute.adapters.embedded.budget.options import BudgetOptions
    from warmroute.adapters.embedded.engine.scheduler import Scheduler
    from warmroute.policies.eviction.base import BlockEviction

RETAINED_SHARE = 0.5
"""Largest share of the blocks that may be retained for later requests."""


class EngineState:
    """What may be read and changed between two steps.

    `Engine.call` is the way in, to the compute thread. No sequence is being computed
    then.

    Args:
        store: Bytes of the pages, one more than there are blocks: the null page.
        options: Settings of the engine.
        model_name: As served; part of every block hash.
        clock: Monotonic seconds.
        observer: Told what the cache gains and loses.

    Attributes:
        options: Settings of the engine.
        model_name: As served.
        pool: Pages and their state.
        contents: Token ids of the resident blocks.
        store: Bytes of the pages.
        host: The host tier with its bytes, None without one.
        cache: The prefix cache.
        retention: Prefixes that are kept resident for a while.
        budget: Token budget of new requests that bring none.
        scheduler: Running and waiting sequences, set by the engine.
        peak_blocks: Most blocks referenced at once.
    """

    __slots__ = (
        "budget",
        "cache",
        "clock",
        "contents",
        "host",
        "model_name",
        "options",
        "peak_blocks",
        "pool",
        "retention",
        "scheduler",
        "store",
    )

    scheduler: Scheduler

    def __init__(
        self,
        store: PageStore,
        options: EngineOptions,
        model_name: str,
        clock: Callable[[], float],
        observer: KVObserver | None = None,
    ) -> None:
        self.options = options
        self.model_name = model_name
        self.clock = clock
        self.budget: BudgetOptions | None = options.budget
        self.peak_blocks = 0
        self.contents = BlockContents(observer)
        self.pool = BlockPool(
            options.num_pages,
            options.block_size,
            self._eviction(options.eviction),
            self.contents,
        )
        self.store = store
        self.host: HostPages | None = None
        if options.host_blocks:
            self.host = HostPages(options.host_blocks, self.contents)
        self.cache = PrefixCache(self.pool, self.contents, self.store, self.host)
        self.retention = Retention(self.pool, RETAINED_SHARE, clock=clock)

    def __repr__(self) -> str:
        return f"<EngineState of {self.model_name}: {self.pool!r}, {self.host!r}>"

    def root(self, cache_salt: str | None) -> int:
        """Return the seed of the block hashes of requests with this salt."""
        return root_hash(self.model_name, salt=cache_salt)

    def offload(self, hashes: Iterable[int]) -> int:
        """Move resident blocks to the host: see `PrefixCache.offload`."""
        return self.cache.offload(hashes)

    def restore(self, hashes: Iterable[int]) -> int:
        """Copy blocks from the host to pages: see `PrefixCache.restore`."""
        return self.cache.restore(hashes)

    def flush(self) -> bool:
        """Drop all that nobody uses, on pages and host; see `BlockPool.flush`."""
        if self.host is not None:
            self.host.clear()
        return self.pool.flush()

    def set_eviction(self, name: str, /, **options: object) -> None:
        """Put another block eviction policy in force.

        Raises:
            PolicyError: No such policy, or it does not take these options; the old
                one stays.
        """
        self.pool.set_policy(self._eviction(name, **options))

    def _eviction(self, name: str, /, **options: object) -> BlockEviction:
        """Make a policy, and tell it the size of a block if it asks for that."""
        if takes(name, "block_size"):
            options = {"block_size": self.options.block_size, **options}
        return create(name, self.options.num_blocks, self.clock, **options)

    def let_go(self) -> int:
        """Retain nothing any more, for a request that cannot run otherwise."""
        kept = [one.block_hash for one in self.pool.snapshot()]
        return self.retention.release(kept)

    def note_peak(self) -> None:
        """Take note of the blocks referenced now."""
        self.peak_blocks = max(self.peak_blocks, self.pool.num_referenced)
