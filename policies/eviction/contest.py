"""Which eviction rule would have had the most hits lately, by sampled shadows."""

from collections.abc import Sequence

from warmroute.policies.eviction.base import BlockFacts, EvictionBase
from warmroute.policies.eviction.ghosts import Ghosts
from warmroute.policies.eviction.shadow import Shadow

_HASH_BITS = 64
_HASH_MASK = (1 << _HASH_BITS) - 1
_HASH_FACTOR = 0x9E3779B97F4A7C15  # 2**64 / golden ratio
_ROUNDS_PER_FILL = 8
_FILLS_REMEMBERED = 16
_LEAD = 0.01
_MOST_OPEN_CHAINS = 1024


class Contest:
    """Shadow caches of several rules over a sample of the blocks, and who leads.

    A sample of the blocks, by hash, in a cache of the same share of the size, hits
    like the whole (Waldspurger et al. 2015, "Efficient MRC Construction with SHARDS",
    section 3; 2017, "Cache Modeling and Optimization using Miniature Simulations",
    section 3). All shadows see the same uses, so that even small differences tell.

    Only prefix hits count, so uses are gathered in *runs*: blocks of one chain, one
    after the other, head first as a pool reports them or tail first. A run is settled
    when another begins; one that continues an earlier run starts out warm if that
    one ended so.

    Hits are counted in rounds of an eighth of the shadows' capacity and fade over
    sixteen capacities: rules differ at reuse distances of about a capacity, so a few
    of these are noise, and a memory of many more would miss a change of the load.
    The leader changes when another has 1 % more hits. O(rules * log n) for a sampled
    block, O(1) for others.

    Args:
        rules: One for each shadow, built for the capacity of the shadows.
        share: Share of the blocks to sample, up to 1.
    """

    __slots__ = (
        "_bound", "_ends", "_first", "_is_rising", "_last", "_num_uses", "_round_uses",
        "_scores", "_shadows", "leader",
    )  # fmt: skip

    def __init__(self, rules: Sequence[EvictionBase], share: float) -> None:
        self._shadows = [Shadow(rule) for rule in rules]
        self._scores = [0.0 for _ in rules]
        self._bound = int(share * (1 << _HASH_BITS))
        self._round_uses = max(1, rules[0].capacity // _ROUNDS_PER_FILL)
        self._num_uses = 0
        # Ends of the run at hand as (block, parent), and whether the second block
        # of it was behind the first or in front of it.
        self._first: tuple[int, int | None] | None = None
        self._last: tuple[int, int | None] | None = None
        self._is_rising: bool | None = None
        # Nearest sampled block at or in front of the ends of earlier runs.
        num_chains = min(_MOST_OPEN_CHAINS, round(rules[0].capacity / share))
        self._ends: Ghosts[int | None] = Ghosts(num_chains)
        self.leader = 0
        """Index of the rule that leads."""

    def __repr__(self) -> str:
        hits = ", ".join(f"{score:.0f}" for score in self._scores)
        return f"<Contest [Leader: {self.leader}, hits: {hits}]>"

    def use(self, block: int, facts: BlockFacts) -> None:
        """Count a use of *block*: its coming in, or a touch."""
        link = block, facts.parent
        if not self._continues(link):
            self._settle()
            self._first = link
        self._last = link
        if self._samples(block):
            for shadow in self._shadows:
                shadow.use(block, facts)
            self._num_uses += 1

    def hold(self, block: int) -> None:
        """Take note that *block* is referenced."""
        if self._samples(block):
            for shadow in self._shadows:
                shadow.hold(block)

    def free(self, block: int) -> None:
        """Take note that *block* is evictable again."""
        if self._samples(block):
            for shadow in self._shadows:
                shadow.free(block)

    def _samples(self, block: int) -> bool:
        return (block * _HASH_FACTOR & _HASH_MASK) < self._bound

    def _continues(self, link: tuple[int, int | None]) -> bool:
        """Tell whether *link* is the next of the run at hand, in its direction."""
        if self._last is None:
            return False
        block, parent = link
        is_child, is_parent = parent == self._last[0], block == self._last[1]
        if self._is_rising is None and (is_child or is_parent):
            self._is_rising = is_child
            return True
        return is_child if self._is_rising else is_parent

    def _settle(self) -> None:
        """Count the hits of the run at hand, and start a round when it is time."""
        if self._first is None or self._last is None:
            return
        is_falling = self._is_rising is False
        head, tail = self._first, self._last
        if is_falling:
            head, tail = tail, head
        ancestor = self._nearest(head[1])
        nearest = ancestor
        for shadow in self._shadows:
            nearest = shadow.settle(ancestor)
        self._ends.remember(tail[0], nearest)
        self._first = self._last = self._is_rising = None
        if self._num_uses >= self._round_uses:
            self._judge()

    def _nearest(self, block: int | None) -> int | None:
        if block is None or self._samples(block):
            return block
        return self._ends.peek(block)

    def _judge(self) -> None:
        keep = 1.0 - 1.0 / (_ROUNDS_PER_FILL * _FILLS_REMEMBERED)
        for index, shadow in enumerate(self._shadows):
            self._scores[index] = self._scores[index] * keep + shadow.hits
            shadow.hits = 0
        self._num_uses = 0
        best = max(range(len(self._scores)), key=self._scores.__getitem__)
        if self._scores[best] > self._scores[self.leader] * (1.0 + _LEAD):
            self.leader = best
