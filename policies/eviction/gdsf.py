"""Give up the block whose recomputation is cheapest for the use that it has."""

from collections.abc import Callable, Iterable
from typing import Annotated

from warmroute.policies.eviction.base import BlockFacts, EvictionBase
from warmroute.policies.eviction.ghosts import Ghosts
from warmroute.policies.eviction.leaf_heap import LeafHeap
from warmroute.policies.kv.shards import Shards
from warmroute.policies.routing.base import Limits


class Gdsf(EvictionBase):
    """Give up the block whose recomputation is cheapest for the use that it has.

    Cherkasova 1998, "Improving WWW Proxies Performance with Greedy-Dual-Size-
    Frequency Caching Policy", section 3: the priority of a block is
    ``clock + uses * cost``, where the clock is the priority of the last victim. All
    blocks have one size. Attention makes a block dearer the deeper it is, so its
    cost is ``1 + depth / 64k tokens``; blocks that went keep their count of uses for
    a while. A deep block may rank above those in front of it, so leaves go first.
    O(log n).

    Args:
        capacity: Blocks that the cache can hold.
        clock: Monotonic seconds.
        block_size: Tokens a block.
        deep_tokens: Depth at which a block costs twice as much as the first one.
        ghost_ratio: Blocks remembered after they went, as a multiple of *capacity*.
    """

    name = "gdsf"
    __slots__ = (
        "_cost_per_depth",
        "_ghosts",
        "_heap",
        "_priorities",
        "_uses",
        "_water",
    )

    def __init__(
        self,
        *,
        capacity: int,
        clock: Callable[[], float],
        block_size: Annotated[int, Limits(1, 1 << 20)] = 16,
        deep_tokens: Annotated[int, Limits(1, 1 << 40)] = 65_536,
        ghost_ratio: Annotated[float, Limits(0.0, 1e3)] = 8.0,
    ) -> None:
        super().__init__(capacity=capacity, clock=clock)
        self._cost_per_depth = block_size / deep_tokens
        self._heap = LeafHeap()
        self._uses: Shards[int, int] = Shards()
        self._priorities: Shards[int, float] = Shards()
        self._ghosts: Ghosts[int] = Ghosts(round(capacity * ghost_ratio))
        self._water = 0.0

    def _admit(self, block: int, facts: BlockFacts) -> None:
        if facts.parent is not None:
            self._heap.add_child(facts.parent)
        self._uses.of(block)[block] = self._ghosts.recall(block) or 0
        self._reward(block, facts)
        self._restore(block)

    def _reward(self, block: int, facts: BlockFacts) -> None:
        uses = self._uses.of(block)
        uses[block] += 1
        cost = 1.0 + facts.depth * self._cost_per_depth
        self._priorities.of(block)[block] = self._water + uses[block] * cost
        if block in self._heap:
            self._restore(block)

    def _withdraw(self, block: int) -> None:
        self._heap.discard(block)

    def _restore(self, block: int) -> None:
        priority = self._priorities.of(block)[block]
        self._heap.put(block, (priority, -self.facts(block).depth))

    def _select(self) -> int:
        block, (self._water, _) = self._heap.pop()
        return block

    def _candidates(self) -> Iterable[int]:
        return self._heap.ordered()

    def _forget(self, block: int, facts: BlockFacts) -> None:
        if facts.parent is not None:
            self._heap.drop_child(facts.parent)
        del self._priorities.of(block)[block]
        self._ghosts.remember(block, self._uses.of(block).pop(block))

    def forget_gone(self, count: int) -> bool:
        """Forget up to *count* blocks that are gone; tell whether more are left."""
        return self._ghosts.forget(count)
