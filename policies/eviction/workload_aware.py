"""Give up the block whose kind of request is least likely to come back for it."""

from collections.abc import Callable, Iterable
from math import exp

import msgspec

from warmroute.policies.eviction.base import BlockFacts, EvictionBase
from warmroute.policies.eviction.block_order import BlockOrder, block_order
from warmroute.policies.eviction.ghosts import Ghosts
from warmroute.policies.eviction.reuse import ReuseTimes
from warmroute.policies.kv.shards import Shards

_MOST_TURNS = 5
_GHOST_RATIO = 8
_FIRST_LIFE_S = 60.0
_LIFE_GAIN = 1e-3


class Category(msgspec.Struct, frozen=True, gc=False):
    """A kind of request: its turn, up to 5, and its length as a power of two."""

    turn: int
    length: int


class Use(msgspec.Struct, frozen=True, gc=False):
    """The last use of a block."""

    category: Category
    time: float


class WorkloadAware(EvictionBase):
    """Give up the block whose kind of request is least likely to come back for it.

    Wang et al. 2025, "KVCache Cache in the Wild" (USENIX ATC), section 5: reuse
    times are exponential within a category of requests, so a block idle for ``t`` is
    ranked by the chance of a reuse in ``[t, t + life]``, where the life is how long
    blocks stay unused until they go; within a category the oldest goes first, and
    the tail of a chain before its head. Two deviations: a category is turn x length
    (the paper's request types are not known to an engine), a touched block moving on
    to the next turn; and the chance counts that many blocks are never used again.
    O(categories), at most about a hundred, for a victim; O(1) for the rest.
    """

    name = "workload_aware"
    __slots__ = ("_ghosts", "_life_s", "_queues", "_times", "_uses")

    def __init__(self, *, capacity: int, clock: Callable[[], float]) -> None:
        super().__init__(capacity=capacity, clock=clock)
        self._queues: dict[Category, BlockOrder] = {}
        self._times: dict[Category, ReuseTimes] = {}
        self._uses: Shards[int, Use] = Shards()
        self._ghosts: Ghosts[Use] = Ghosts(capacity * _GHOST_RATIO)
        self._life_s = _FIRST_LIFE_S

    def _admit(self, block: int, facts: BlockFacts) -> None:
        length = max(facts.prompt_blocks, facts.depth + 1).bit_length()
        category = Category(min(facts.turn, _MOST_TURNS), length)
        self._use(block, category, self._ghosts.recall(block))
        self._restore(block)

    def _reward(self, block: int, facts: BlockFacts) -> None:
        last = self._uses.of(block)[block]
        turn, length = last.category.turn, last.category.length
        queue = self._queues.get(last.category)
        is_candidate = queue is not None and queue.discard(block)
        self._use(block, Category(min(turn + 1, _MOST_TURNS), length), last)
        if is_candidate:
            self._restore(block)

    def _withdraw(self, block: int) -> None:
        self._queues[self._uses.of(block)[block].category].discard(block)

    def _restore(self, block: int) -> None:
        category = self._uses.of(block)[block].category
        queue = self._queues.get(category)
        if queue is None:
            queue = self._queues[category] = block_order(self.capacity)
        queue.push(block)

    def _select(self) -> int:
        now = self._clock()
        queues = [one for one in self._queues.items() if one[1]]
        _, queue = min(
            queues, key=lambda one: self._chance(one[0], one[1].first(), now)
        )
        block = queue.pop()
        idle_s = now - self._uses.of(block)[block].time
        self._life_s += _LIFE_GAIN * (idle_s - self._life_s)
        return block

    def _candidates(self) -> Iterable[int]:
        now = self._clock()
        ranks = {
            block: (self._chance(category, block, now), place)
            for category, queue in self._queues.items()
            for place, block in enumerate(queue)
        }
        return sorted(ranks, key=ranks.__getitem__)

    def _forget(self, block: int, facts: BlockFacts) -> None:
        self._ghosts.remember(block, self._uses.of(block).pop(block))

    def forget_gone(self, count: int) -> bool:
        """Forget up to *count* blocks that are gone; tell whether more are left."""
        return self._ghosts.forget(count)

    def _use(self, block: int, category: Category, last: Use | None) -> None:
        now = self._clock()
        if last is not None:
            self._times[last.category].add_reuse(now - last.time)
        self._uses.of(block)[block] = Use(category, now)
        self._times.setdefault(category, ReuseTimes()).add_use()

    def _chance(self, category: Category, block: int, now: float) -> float:
        """Return how likely *block* is used again within a life from now."""
        times = self._times[category]
        share, rate = times.share, times.rate
        waiting = share * exp(-rate * (now - self._uses.of(block)[block].time))
        return waiting * (1.0 - exp(-rate * self._life_s)) / (1.0 - share + waiting)
