"""Give up the block that was used least often."""

from collections.abc import Callable, Iterable

from warmroute.policies.eviction.base import BlockFacts, EvictionBase
from warmroute.policies.kv.block_heap import BlockHeap
from warmroute.policies.kv.shards import Shards


class Lfu(EvictionBase):
    """Give up the block used least often, and least recently among equals.

    Counts begin at 1 when a block comes in and end with it ("in-cache LFU", Breslau
    et al. 1999, "Web Caching and Zipf-like Distributions", section 5). They never
    age, so blocks that were popular once stay: a warning, not a recommendation.
    O(log n).
    """

    name = "lfu"
    __slots__ = ("_heap", "_time", "_uses")

    def __init__(self, *, capacity: int, clock: Callable[[], float]) -> None:
        super().__init__(capacity=capacity, clock=clock)
        self._heap = BlockHeap()
        self._uses: Shards[int, int] = Shards()
        self._time = 0  # counts uses and releases

    def _admit(self, block: int, facts: BlockFacts) -> None:
        self._uses.of(block)[block] = 1
        self._restore(block)

    def _reward(self, block: int, facts: BlockFacts) -> None:
        self._uses.of(block)[block] += 1
        if block in self._heap:
            self._restore(block)

    def _withdraw(self, block: int) -> None:
        self._heap.discard(block)

    def _restore(self, block: int) -> None:
        self._time += 1
        self._heap.put(block, (self._uses.of(block)[block], self._time))

    def _select(self) -> int:
        return self._heap.pop()[0]

    def _candidates(self) -> Iterable[int]:
        return self._heap.ordered()

    def _forget(self, block: int, facts: BlockFacts) -> None:
        del self._uses.of(block)[block]
