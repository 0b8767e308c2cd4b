"""Let the policy rule that would have had the most hits lately."""

from collections.abc import Callable
from typing import Annotated

from warmroute.policies.eviction.arc import Arc
from warmroute.policies.eviction.base import BlockFacts, EvictionBase, Remembering
from warmroute.policies.eviction.contest import Contest
from warmroute.policies.eviction.lrfu import Lrfu
from warmroute.policies.eviction.lru import Lru
from warmroute.policies.eviction.s3fifo import S3Fifo
from warmroute.policies.routing.base import Limits

_RULES: tuple[type[EvictionBase], ...] = (Lru, Lrfu, Arc, S3Fifo)


class Adaptive:
    """Let the policy rule that would have had the most hits lately.

    No policy wins everywhere: LRFU is best on chats, ARC and LRU on agents, S3-FIFO
    where most blocks are used once. Small shadow caches of the four (see `Contest`)
    show which one does best on this workload. All four follow the real cache, so a
    change of the ruler scans nothing and loses no history: the next victim is simply
    another policy's. O(log n).

    Args:
        capacity: Blocks that the cache can hold.
        clock: Monotonic seconds.
        shadow_blocks: Most blocks in a shadow; a smaller cache is simulated whole.
    """

    name = "adaptive"
    __slots__ = ("_contest", "_rules")

    def __init__(
        self,
        *,
        capacity: int,
        clock: Callable[[], float],
        shadow_blocks: Annotated[int, Limits(16, 1 << 30)] = 2048,
    ) -> None:
        self._rules = [rule(capacity=capacity, clock=clock) for rule in _RULES]
        small = min(capacity, shadow_blocks)
        shadow_rules = [rule(capacity=small, clock=clock) for rule in _RULES]
        self._contest = Contest(shadow_rules, small / capacity)

    def __repr__(self) -> str:
        return f"<Adaptive [Ruler: {self.ruler}, blocks: {len(self)}]>"

    def __len__(self) -> int:
        return len(self._ruling)

    @property
    def ruler(self) -> str:
        """Name of the policy that chooses the victims now."""
        return self._ruling.name

    @property
    def _ruling(self) -> EvictionBase:
        return self._rules[self._contest.leader]

    def inserted(self, block: int, facts: BlockFacts) -> None:
        """Take note that *block* is cached now."""
        for rule in self._rules:
            rule.inserted(block, facts)
        self._contest.use(block, facts)

    def touched(self, block: int) -> None:
        """Take note that *block* was used again."""
        for rule in self._rules:
            rule.touched(block)
        self._contest.use(block, self._ruling.facts(block))

    def held(self, block: int) -> None:
        """Take note that *block* is referenced."""
        for rule in self._rules:
            rule.held(block)
        self._contest.hold(block)

    def freed(self, block: int) -> None:
        """Take note that *block* is evictable again."""
        for rule in self._rules:
            rule.freed(block)
        self._contest.free(block)

    def removed(self, block: int) -> None:
        """Take note that *block* is gone for another reason."""
        for rule in self._rules:
            rule.removed(block)
        self._contest.free(block)  # shadows have caches of their own: there it stays

    def demoted(self, block: int) -> None:
        """Make *block* the next victim, until it is touched."""
        for rule in self._rules:
            rule.demoted(block)

    def evict(self, count: int) -> list[int]:
        """Choose up to *count* victims by the ruling policy and forget them."""
        ruling = self._ruling
        victims = ruling.evict(count)
        for block in victims:
            for rule in self._rules:
                if rule is not ruling:
                    rule.removed(block)
        return victims

    def resident(self) -> list[int]:
        """List the cached blocks in the order of eviction, held ones last."""
        return self._ruling.resident()

    def forget_gone(self, count: int) -> bool:
        """Forget up to *count* blocks that are gone; tell whether more are left."""
        left = False
        for rule in self._rules:
            if isinstance(rule, Remembering):
                left |= rule.forget_gone(count)
        return left

    def check_integrity(self) -> None:
        """Raise `AssertionError` when the structures contradict each other."""
        for rule in self._rules:
            rule.check_integrity()
        assert len({frozenset(rule.resident()) for rule in self._rules}) == 1
