"""Let blocks that are never used again leave early."""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Annotated

from warmroute.policies.eviction.base import BlockFacts, EvictionBase
from warmroute.policies.eviction.block_queue import BlockQueue
from warmroute.policies.eviction.ghosts import Ghosts
from warmroute.policies.kv.shards import Shards
from warmroute.policies.routing.base import Limits

_MOST_USES = 3
_PROVEN_USES = 2


class S3Fifo(EvictionBase):
    """Let blocks that are never used again leave early: three simple queues.

    Yang et al. 2023, "FIFO Queues Are All You Need for Cache Eviction", section 4,
    algorithm 1: new blocks pass a small queue; those used more than once on the way
    go to the main queue, where a use buys another round, and the others become
    ghosts, which enter the main queue directly when they come back. O(1) amortised.

    Args:
        capacity: Blocks that the cache can hold.
        clock: Monotonic seconds.
        small_ratio: Share of the capacity that the small queue gets.
    """

    name = "s3fifo"
    __slots__ = ("_ghosts", "_main", "_small", "_small_blocks", "_uses")

    def __init__(
        self,
        *,
        capacity: int,
        clock: Callable[[], float],
        small_ratio: Annotated[float, Limits(0.0, 1.0)] = 0.1,
    ) -> None:
        super().__init__(capacity=capacity, clock=clock)
        self._small_blocks = max(1, round(capacity * small_ratio))
        self._small = BlockQueue(capacity)
        self._main = BlockQueue(capacity)
        self._ghosts: Ghosts[bool] = Ghosts(capacity - self._small_blocks)
        # Since it came in or got its last round.
        self._uses: Shards[int, int] = Shards()

    def _admit(self, block: int, facts: BlockFacts) -> None:
        self._uses.of(block)[block] = 0
        is_ghost = self._ghosts.recall(block)
        (self._main if is_ghost else self._small).push(block)

    def _reward(self, block: int, facts: BlockFacts) -> None:
        uses = self._uses.of(block)
        uses[block] = min(_MOST_USES, uses[block] + 1)

    def _withdraw(self, block: int) -> None:
        self._queue_of(block).block(block)

    def _restore(self, block: int) -> None:
        self._queue_of(block).unblock(block)

    def _select(self) -> int:
        while True:
            small, main = self._small, self._main
            is_over = len(small) >= self._small_blocks or not main.num_ready
            victim = (
                self._pop_small() if is_over and small.num_ready else self._pop_main()
            )
            if victim is not None:
                return victim

    def _candidates(self) -> Iterable[int]:
        return chain(self._small.ready(), self._main.ready())

    def _forget(self, block: int, facts: BlockFacts) -> None:
        if block in self._small:
            self._ghosts.remember(block, True)
        self._small.discard(block)
        self._main.discard(block)
        del self._uses.of(block)[block]

    def forget_gone(self, count: int) -> bool:
        """Forget up to *count* blocks that are gone; tell whether more are left."""
        return self._ghosts.forget(count)

    def _queue_of(self, block: int) -> BlockQueue:
        return self._small if block in self._small else self._main

    def _pop_small(self) -> int | None:
        block = self._small.pop()
        uses = self._uses.of(block)
        if uses[block] < _PROVEN_USES:
            self._ghosts.remember(block, True)
            return block
        uses[block] = 0
        self._main.push(block)
        return None

    def _pop_main(self) -> int | None:
        block = self._main.pop()
        uses = self._uses.of(block)
        if not uses[block]:
            return block
        uses[block] -= 1
        self._main.push(block)
        return None
