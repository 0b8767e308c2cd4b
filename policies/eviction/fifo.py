"""Give up the block that came in first."""

from collections.abc import Callable, Iterable

from warmroute.policies.eviction.base import BlockFacts, EvictionBase
from warmroute.policies.eviction.block_queue import BlockQueue


class Fifo(EvictionBase):
    """Give up the block that came in first, used again or not.

    The least that a policy can be, and the measure of what recency is worth. O(1).
    """

    name = "fifo"
    __slots__ = ("_queue",)

    def __init__(self, *, capacity: int, clock: Callable[[], float]) -> None:
        super().__init__(capacity=capacity, clock=clock)
        self._queue = BlockQueue(capacity)

    def _admit(self, block: int, facts: BlockFacts) -> None:
        self._queue.push(block)

    def _reward(self, block: int, facts: BlockFacts) -> None:
        """Use changes nothing."""

    def _withdraw(self, block: int) -> None:
        self._queue.block(block)

    def _restore(self, block: int) -> None:
        self._queue.unblock(block)

    def _select(self) -> int:
        return self._queue.pop()

    def _candidates(self) -> Iterable[int]:
        return self._queue.ready()

    def _forget(self, block: int, facts: BlockFacts) -> None:
        self._queue.discard(block)
