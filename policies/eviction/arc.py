"""Balance blocks used once against blocks used again, by their ghosts."""

from collections.abc import Callable, Iterable
from itertools import chain

from warmroute.policies.eviction.base import BlockFacts, EvictionBase
from warmroute.policies.eviction.block_order import BlockOrder, block_order
from warmroute.policies.eviction.ghosts import Ghosts
from warmroute.policies.kv.shards import Shards


class Arc(EvictionBase):
    """Balance blocks used once against blocks used again, by what was given up.

    Megiddo and Modha 2003, "ARC: A Self-Tuning, Low Overhead Replacement Cache",
    section III, figure 4. ``T1`` is `_once`, ``T2`` is `_again`, ``B1`` and ``B2``
    are the ghosts of each, ``p`` is `_target`. A pool asks for room before it says
    what comes in, so a ghost that returns moves the target after the eviction, not
    before it. Held blocks count in the list they will return to. O(1).
    """

    name = "arc"
    __slots__ = (
        "_again", "_again_ghosts", "_num_once", "_once", "_once_ghosts", "_proven",
        "_target",
    )  # fmt: skip

    def __init__(self, *, capacity: int, clock: Callable[[], float]) -> None:
        super().__init__(capacity=capacity, clock=clock)
        self._once = block_order(capacity)
        self._again = block_order(capacity)
        self._once_ghosts: Ghosts[bool] = Ghosts(capacity)
        self._again_ghosts: Ghosts[bool] = Ghosts(2 * capacity)
        self._proven: Shards[int, None] = Shards()  # residents of T2
        self._num_once = 0  # residents of T1
        self._target = 0.0

    def _admit(self, block: int, facts: BlockFacts) -> None:
        once, again = len(self._once_ghosts), len(self._again_ghosts)
        if self._once_ghosts.recall(block):
            self._target = min(self._target + max(1.0, again / once), self.capacity)
            self._proven.of(block)[block] = None
        elif self._again_ghosts.recall(block):
            self._target = max(self._target - max(1.0, once / again), 0.0)
            self._proven.of(block)[block] = None
        else:
            self._num_once += 1
        self._restore(block)
        self._trim_ghosts()

    def _reward(self, block: int, facts: BlockFacts) -> None:
        if self._once.discard(block):
            self._again.push(block)
        else:
            self._again.renew(block)
        proven = self._proven.of(block)
        if block not in proven:
            proven[block] = None
            self._num_once -= 1

    def _withdraw(self, block: int) -> None:
        self._list_of(block).discard(block)

    def _restore(self, block: int) -> None:
        self._list_of(block).push(block)

    def _select(self) -> int:
        is_over = self._num_once > self._target or not self._again
        chosen = self._once if is_over and self._once else self._again
        return chosen.pop()

    def _candidates(self) -> Iterable[int]:
        return chain(self._once, self._again)

    def _forget(self, block: int, facts: BlockFacts) -> None:
        proven = self._proven.of(block)
        if block in proven:
            del proven[block]
            self._again_ghosts.remember(block, True)
        else:
            self._num_once -= 1
            self._once_ghosts.remember(block, True)
        self._trim_ghosts()

    def forget_gone(self, count: int) -> bool:
        """Forget up to *count* blocks that are gone; tell whether more are left."""
        return self._once_ghosts.forget(count) or self._again_ghosts.forget(count)

    def _list_of(self, block: int) -> BlockOrder:
        return self._again if block in self._proven else self._once

    def _trim_ghosts(self) -> None:
        """Keep to the paper's limits: L1 at most c, L1 and L2 together 2c."""
        self._once_ghosts.trim(max(0, self.capacity - self._num_once))
        rest = 2 * self.capacity - len(self) - len(self._once_ghosts)
        self._again_ghosts.trim(max(0, rest))
