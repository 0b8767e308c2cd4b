"""A cache that holds no bytes: how many hits a rule would have had."""

from warmroute.policies.eviction.base import BlockFacts, EvictionBase


class Shadow:
    """A simulated cache of its own under one rule, which counts prefix hits.

    A block is *warm* when its last use was a prefix hit: it was cached, and so was
    the part of its chain in front of it. A cached block behind a hole is not.

    Args:
        rule: The rule to try; its capacity is that of the shadow.
    """

    __slots__ = ("_rule", "_warm", "hits")

    def __init__(self, rule: EvictionBase) -> None:
        self._rule = rule
        self._warm: set[int] = set()
        self.hits = 0
        """Prefix hits since somebody last set this to 0."""

    def __repr__(self) -> str:
        return f"<Shadow {self._rule.name} [Hits: {self.hits}]>"

    def __len__(self) -> int:
        return len(self._rule)

    def use(self, block: int, facts: BlockFacts, ancestor: int | None) -> None:
        """Let a request use *block*, just after *ancestor* in its chain."""
        rule, warm = self._rule, self._warm
        if block not in rule:
            if len(rule) >= rule.capacity:
                warm.difference_update(rule.evict(1))
            rule.inserted(block, facts)
            return
        rule.touched(block)
        if ancestor is None or ancestor in warm:
            warm.add(block)
            self.hits += 1
        else:
            warm.discard(block)

    def rest(self, block: int) -> None:
        """Let the request that used *block* end: the order of ends is an order, too."""
        if block in self._rule:
            self._rule.held(block)
            self._rule.freed(block)
