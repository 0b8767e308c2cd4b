"""Give up the block with the least use, where older uses count less."""

from collections.abc import Callable, Iterable
from math import exp, log, log1p
from typing import Annotated

from warmroute.policies.eviction.base import BlockFacts, EvictionBase
from warmroute.policies.eviction.ghosts import Ghosts
from warmroute.policies.kv.block_heap import BlockHeap
from warmroute.policies.kv.shards import Shards
from warmroute.policies.routing.base import Limits


class Lrfu(EvictionBase):
    """Give up the block with the least use, a use counting half after a half-life.

    Lee et al. 2001, "LRFU: A Spectrum of Policies that Subsumes the Least Recently
    Used and Least Frequently Used Policies", sections 2 and 3: the combined recency
    and frequency of a block is the sum of ``2 ** -(age / half_life)`` over its uses.
    Kept here as the logarithm of that sum at time 0, which does not change with
    time. Unlike in the paper, blocks that went keep theirs for a while, and the
    deeper one goes first among equals. O(log n).

    Args:
        capacity: Blocks that the cache can hold.
        clock: Monotonic seconds.
        half_life_s: After how long a use counts half.
        ghost_ratio: Blocks remembered after they went, as a multiple of *capacity*.
    """

    name = "lrfu"
    __slots__ = ("_decay", "_ghosts", "_heap", "_scores")

    def __init__(
        self,
        *,
        capacity: int,
        clock: Callable[[], float],
        half_life_s: Annotated[float, Limits(1e-3, 1e9)] = 300.0,
        ghost_ratio: Annotated[float, Limits(0.0, 1e3)] = 8.0,
    ) -> None:
        super().__init__(capacity=capacity, clock=clock)
        self._decay = log(2.0) / half_life_s
        self._heap = BlockHeap()
        self._scores: Shards[int, float] = Shards()
        self._ghosts: Ghosts[float] = Ghosts(round(capacity * ghost_ratio))

    def _admit(self, block: int, facts: BlockFacts) -> None:
        self._scores.of(block)[block] = self._used(self._ghosts.recall(block))
        self._restore(block)

    def _reward(self, block: int, facts: BlockFacts) -> None:
        scores = self._scores.of(block)
        scores[block] = self._used(scores[block])
        if block in self._heap:
            self._restore(block)

    def _withdraw(self, block: int) -> None:
        self._heap.discard(block)

    def _restore(self, block: int) -> None:
        score = self._scores.of(block)[block]
        self._heap.put(block, (score, -self.facts(block).depth))

    def _select(self) -> int:
        return self._heap.pop()[0]

    def _candidates(self) -> Iterable[int]:
        return self._heap.ordered()

    def _forget(self, block: int, facts: BlockFacts) -> None:
        self._ghosts.remember(block, self._scores.of(block).pop(block))

    def forget_gone(self, count: int) -> bool:
        """Forget up to *count* blocks that are gone; tell whether more are left."""
        return self._ghosts.forget(count)

    def _used(self, score: float | None) -> float:
        """Add a use of now to *score*, a natural logarithm."""
        now = self._clock() * self._decay
        if score is None:
            return now
        high, low = max(score, now), min(score, now)
        return high + log1p(exp(low - high))
