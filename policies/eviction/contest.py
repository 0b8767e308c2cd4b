"""Which eviction rule would have had the most hits lately, by sampled shadows."""

from collections.abc import Sequence

from warmroute.policies.eviction.base import BlockFacts, EvictionBase
from warmroute.policies.eviction.shadow import Shadow

_HASH_BITS = 64
_HASH_MASK = (1 << _HASH_BITS) - 1
_HASH_FACTOR = (
    0x9E3779B97F4A7C15  # 2**64 / golden ratio: spreads ids that are no hashes
)
_ROUNDS_PER_FILL = 8
_FILLS_REMEMBERED = 4
_LEAD = 0.01


class Contest:
    """Shadow caches of several rules over a sample of the blocks, and who leads.

    A sample of the blocks, by hash, in a cache of the same share of the size, hits
    like the whole (Waldspurger et al. 2015, "Efficient MRC Construction with SHARDS",
    section 3; 2017, "Cache Modeling and Optimization using Miniature Simulations",
    section 3). All shadows see the same uses, so that even small differences tell.

    Hits are counted in rounds of an eighth of the shadows' capacity and fade over
    four capacities: a rule shows at reuse distances of about the capacity, so a
    shorter memory would see noise, and a longer one would miss a change of the
    workload. The leader changes when another has 1 % more hits. O(rules * log n) for
    a sampled block, O(1) for others.

    Args:
        rules: One for each shadow, built for the capacity of the shadows.
        share: Share of the blocks to sample, up to 1.
    """

    __slots__ = (
        "_ancestors", "_bound", "_num_uses", "_round_uses", "_scores", "_shadows",
        "leader",
    )  # fmt: skip

    def __init__(self, rules: Sequence[EvictionBase], share: float) -> None:
        self._shadows = [Shadow(rule) for rule in rules]
        self._scores = [0.0 for _ in rules]
        self._bound = int(share * (1 << _HASH_BITS))
        self._round_uses = max(1, rules[0].capacity // _ROUNDS_PER_FILL)
        self._num_uses = 0
        self._ancestors: dict[int, int] = {}  # nearest sampled one, by resident block
        self.leader = 0
        """Index of the rule that leads."""

    def __repr__(self) -> str:
        hits = ", ".join(f"{score:.0f}" for score in self._scores)
        return f"<Contest [Leader: {self.leader}, hits: {hits}]>"

    def enter(self, block: int, facts: BlockFacts) -> None:
        """Take in a block that is cached now, and count its first use."""
        parent = facts.parent
        if parent is not None:
            ancestor = parent if self._samples(parent) else self._ancestors.get(parent)
            if ancestor is not None:
                self._ancestors[block] = ancestor
        self.use(block, facts)

    def use(self, block: int, facts: BlockFacts) -> None:
        """Count a use of a block that is cached."""
        if not self._samples(block):
            return
        ancestor = self._ancestors.get(block)
        for shadow in self._shadows:
            shadow.use(block, facts, ancestor)
        self._num_uses += 1
        if self._num_uses >= self._round_uses:
            self._judge()

    def rest(self, block: int) -> None:
        """Take note that the request that used *block* has ended."""
        if self._samples(block):
            for shadow in self._shadows:
                shadow.rest(block)

    def leave(self, block: int) -> None:
        """Drop what is kept for a block that is not cached any more."""
        self._ancestors.pop(block, None)

    def _samples(self, block: int) -> bool:
        return (block * _HASH_FACTOR & _HASH_MASK) < self._bound

    def _judge(self) -> None:
        keep = 1.0 - 1.0 / (_ROUNDS_PER_FILL * _FILLS_REMEMBERED)
        for index, shadow in enumerate(self._shadows):
            self._scores[index] = self._scores[index] * keep + shadow.hits
            shadow.hits = 0
        self._num_uses = 0
        best = max(range(len(self._scores)), key=self._scores.__getitem__)
        if self._scores[best] > self._scores[self.leader] * (1.0 + _LEAD):
            self.leader = best
