"""A cache that holds no bytes: how many hits a rule would have had."""

from warmroute.policies.eviction.base import BlockFacts, EvictionBase


class Shadow:
    """A simulated cache of its own under one rule, which counts prefix hits.

    A block is *warm* when its last use was a prefix hit: it was cached, and so was
    all that is in front of it. A cached block behind a hole is not.

    Args:
        rule: The rule to try; its capacity is that of the shadow.
    """

    __slots__ = ("_pending", "_rule", "_warm", "hits")

    def __init__(self, rule: EvictionBase) -> None:
        self._rule = rule
        self._warm: set[int] = set()
        self._pending: list[tuple[int, int, bool]] = []  # depth, block, was it cached
        self.hits = 0
        """Prefix hits since somebody last set this to 0."""

    def __repr__(self) -> str:
        return f"<Shadow {self._rule.name} [Blocks: {len(self)}, hits: {self.hits}]>"

    def __len__(self) -> int:
        return len(self._rule)

    def use(self, block: int, facts: BlockFacts) -> None:
        """Let a request use *block*; what it is worth is settled with its run."""
        rule = self._rule
        is_cached = block in rule
        self._pending.append((facts.depth, block, is_cached))
        if is_cached:
            rule.touched(block)
            return
        if len(rule) >= rule.capacity:
            self._warm.difference_update(rule.evict(1))
        if len(rule) < rule.capacity:  # else all that it has is held
            rule.inserted(block, facts)

    def settle(self, ancestor: int | None) -> int | None:
        """Count the hits of a run of a chain, used in either direction.

        Args:
            ancestor: The nearest block in front of the run that came by here.

        Returns:
            The last block of the run, or *ancestor* when none of it came by.
        """
        warm, rule = self._warm, self._rule
        is_warm = ancestor is None or ancestor in warm
        self._pending.sort()
        for _, block, was_cached in self._pending:
            ancestor = block
            is_warm = is_warm and was_cached
            self.hits += is_warm
            if is_warm and block in rule:
                warm.add(block)
            else:
                warm.discard(block)
        self._pending.clear()
        return ancestor

    def hold(self, block: int) -> None:
        """Keep *block*, if it is here, as long as a request needs it."""
        if block in self._rule:
            self._rule.held(block)

    def free(self, block: int) -> None:
        """Let *block*, if it is here, be evicted again."""
        if block in self._rule:
            self._rule.freed(block)
