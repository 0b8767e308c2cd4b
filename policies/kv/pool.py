"""The block pool: pages for requests, and the verbs by which caching is steered."""

from collections.abc import Iterable

from warmroute.policies.errors import PolicyError
from warmroute.policies.eviction.base import BlockEviction
from warmroute.policies.kv.observer import PoolObserver
from warmroute.policies.kv.page_errors import PageMisuse, PoolExhausted
from warmroute.policies.kv.pages import NULL_PAGE, Pages
from warmroute.policies.kv.residents import Resident

__all__ = [
    "NULL_PAGE",
    "BlockPool",
    "PageMisuse",
    "PoolExhausted",
    "PoolObserver",
    "Resident",
]


class BlockPool(Pages):
    """Hand out pages, count who uses them, and keep what may be used again.

    Every operation is O(log n) a page it names. One that raises `PageMisuse` or
    `PoolExhausted` has given nothing away and leaked nothing.

    Args:
        num_pages: Pages of the store, the null page included.
        block_size: Tokens a page.
        eviction: Decides which cached pages go; least recently used by default.
        observer: Hears what becomes cached and what goes.

    Raises:
        PolicyError: Fewer than two pages, or a block size below one.
    """

    __slots__ = ("_held",)

    def __init__(
        self,
        num_pages: int,
        block_size: int,
        eviction: BlockEviction | None = None,
        observer: PoolObserver | None = None,
    ) -> None:
        super().__init__(num_pages, block_size, eviction, observer)
        self._held: set[int] = set()

    @property
    def num_held(self) -> int:
        """Pages that the pool itself holds."""
        return len(self._held)

    def evict(self, hashes: Iterable[int]) -> list[int]:
        """Drop the named blocks that nobody uses, suffix first.

        A block with a cached block behind it stays: without it that one would take
        room and never be found. So a chain is cut from its end only.

        Returns:
            The hashes dropped, in that order.
        """
        dropped = []
        for block_hash in reversed(self._residents.by_depth(hashes)):
            if self._residents.is_leaf(block_hash) and not self._is_used(block_hash):
                self._eviction.removed(block_hash)
                self._observer.removed(block_hash, self._drop(block_hash))
                dropped.append(block_hash)
        return dropped

    def demote(self, hashes: Iterable[int]) -> int:
        """Make the named resident blocks the next victims, suffix first.

        Those in use become that when they are released. A hit undoes it.

        Returns:
            The blocks demoted.
        """
        demoted = self._residents.by_depth(hashes)
        for block_hash in demoted:
            self._eviction.demoted(block_hash)
        return len(demoted)

    def hold(self, hashes: Iterable[int]) -> int:
        """Keep the named resident blocks though nobody uses them.

        Returns:
            The blocks that were not held before.
        """
        fresh = [
            block_hash
            for block_hash in dict.fromkeys(hashes)
            if block_hash in self._residents.pages and block_hash not in self._held
        ]
        for block_hash in fresh:
            self._held.add(block_hash)
            self._take(self._residents.pages[block_hash], block_hash)
        return len(fresh)

    def unhold(self, hashes: Iterable[int]) -> int:
        """Let go of held blocks, given head first; returns how many were held."""
        held = [
            block_hash
            for block_hash in dict.fromkeys(hashes)
            if block_hash in self._held
        ]
        for block_hash in reversed(held):
            self._held.remove(block_hash)
            self._give_back(self._residents.pages[block_hash])
        return len(held)

    def flush(self) -> bool:
        """Drop everything that nobody uses; False while something is in use.

        Held blocks are in use.
        """
        unused = [
            block_hash
            for block_hash in self._residents.by_depth(self._residents.pages)
            if not self._is_used(block_hash)
        ]
        is_all = len(unused) == self.num_cached
        for block_hash in reversed(unused):
            self._eviction.removed(block_hash)
            page = self._drop(block_hash)
            if not is_all:
                self._observer.removed(block_hash, page)
        if is_all:
            self._observer.cleared()
        return self._num_referenced == 0

    def snapshot(self) -> list[Resident]:
        """List the registered blocks, parents in front of children."""
        residents = self._residents
        return [
            residents.describe(block_hash, self._refs[residents.pages[block_hash]])
            for block_hash in residents.by_depth(residents.pages)
        ]

    def set_policy(self, eviction: BlockEviction) -> None:
        """Put another eviction policy in force and hand the residents over.

        They come in in the order in which the old policy would have evicted them.
        O(n log n).

        Raises:
            PolicyError: It knows blocks already; the old one stays.
        """
        if len(eviction):
            raise PolicyError(
                f"eviction {eviction.name}: {len(eviction)} blocks are known to it "
                f"already (allowed: a fresh one)"
            )
        for block_hash in self._eviction.resident():
            eviction.inserted(block_hash, self._residents.facts[block_hash])
            if self._is_used(block_hash):
                eviction.held(block_hash)
        self._eviction = eviction

    def check_integrity(self) -> None:
        """Raise AssertionError unless every invariant holds. O(pages)."""
        super().check_integrity()
        assert self._held <= self._residents.pages.keys(), "a held block is gone"
        assert all(map(self._is_used, self._held)), "a held block is unreferenced"
