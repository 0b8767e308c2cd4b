"""Balance blocks used once against blocks used again, by their ghosts."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import chain

from warmroute.policies.eviction.base import BlockFacts, EvictionBase
from warmroute.policies.eviction.ghosts import Ghosts


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
        "_again", "_again_ghosts", "_once", "_once_ghosts", "_proven", "_target",
    )  # fmt: skip

    def __init__(self, *, capacity: int, clock: Callable[[], float]) -> None:
        super().__init__(capacity=capacity, clock=clock)
        self._once: OrderedDict[int, None] = OrderedDict()
        self._again: OrderedDict[int, None] = OrderedDict()
        self._once_ghosts: Ghosts[bool] = Ghosts(capacity)
        self._again_ghosts: Ghosts[bool] = Ghosts(2 * capacity)
        self._proven: set[int] = set()  # residents of T2
        self._target = 0.0

    def _admit(self, block: int, facts: BlockFacts) -> None:
        once, again = len(self._once_ghosts), len(self._again_ghosts)
        if self._once_ghosts.recall(block):
            self._target = min(self._target + max(1.0, again / once), self.capacity)
            self._proven.add(block)
        elif self._again_ghosts.recall(block):
            self._target = max(self._target - max(1.0, once / again), 0.0)
            self._proven.add(block)
        self._restore(block)
        self._trim_ghosts()

    def _reward(self, block: int, facts: BlockFacts) -> None:
        if block in self._once:
            del self._once[block]
            self._again[block] = None
        elif block in self._again:
            self._again.move_to_end(block)
        self._proven.add(block)

    def _withdraw(self, block: int) -> None:
        del self._list_of(block)[block]

    def _restore(self, block: int) -> None:
        self._list_of(block)[block] = None

    def _select(self) -> int:
        num_once = len(self._facts) - len(self._proven)
        is_over = num_once > self._target or not self._again
        chosen = self._once if is_over and self._once else self._again
        return chosen.popitem(last=False)[0]

    def _candidates(self) -> Iterable[int]:
        return chain(self._once, self._again)

    def _forget(self, block: int, facts: BlockFacts) -> None:
        if block in self._proven:
            self._proven.remove(block)
            self._again_ghosts.remember(block, True)
        else:
            self._once_ghosts.remember(block, True)
        self._trim_ghosts()

    def _list_of(self, block: int) -> OrderedDict[int, None]:
        return self._again if block in self._proven else self._once

    def _trim_ghosts(self) -> None:
        """Keep to the paper's limits: L1 at most c, L1 and L2 together 2c."""
        num_once = len(self._facts) - len(self._proven)
        self._once_ghosts.trim(max(0, self.capacity - num_once))
        rest = 2 * self.capacity - len(self._facts) - len(self._once_ghosts)
        self._again_ghosts.trim(max(0, rest))
