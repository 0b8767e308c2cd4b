"""Give up the block that was used least recently."""

from collections.abc import Callable, Iterable

from warmroute.policies.eviction.base import BlockFacts, EvictionBase
from warmroute.policies.eviction.block_order import block_order


class Lru(EvictionBase):
    """Give up the block that was used least recently, the tail of a chain first.

    A block counts as used when it comes in, is touched, and is freed, so a pool that
    frees tails first evicts leaf first: the order of RadixAttention (Zheng et al.
    2024, "SGLang", section 3). O(1).
    """

    name = "lru"
    __slots__ = ("_queue",)

    def __init__(self, *, capacity: int, clock: Callable[[], float]) -> None:
        super().__init__(capacity=capacity, clock=clock)
        self._queue = block_order(capacity)

    def _admit(self, block: int, facts: BlockFacts) -> None:
        self._queue.push(block)

    def _reward(self, block: int, facts: BlockFacts) -> None:
        self._queue.renew(block)

    def _withdraw(self, block: int) -> None:
        self._queue.discard(block)

    def _restore(self, block: int) -> None:
        self._queue.push(block)

    def _select(self) -> int:
        return self._queue.pop()

    def _candidates(self) -> Iterable[int]:
        return self._queue
