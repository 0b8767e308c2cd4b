"""A cache that is wiped is out of sight at once, whatever comes while it is freed."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from unit.test_radix_model import TOKENS, block, chain, full_paths, key, prefixes

from warmroute.policies.kv.known import Known
from warmroute.policies.kv.radix import PrefixIndex

Path = tuple[int, ...]
NAMES = ("a", "b")
TIERS = ("gpu", "host", "promised")


class LeavingMachine(RuleBasedStateMachine):
    """Two backends announce and promise, and are wiped; `sweep` comes when it likes.

    The model has no slots and no leftovers: a wipe empties its counts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.index.num_at_once = 2
        self.counts: dict[tuple[str, str], Counter[Path]] = {}
        self.stamp = 0
        for name in NAMES:
            self.begin(name)
        for owner in self.index.holders.all:
            owner.known = Known(2)

    def begin(self, name: str) -> None:
        for tier in TIERS:
            self.index.add_holder(name, tier)
            self.counts[name, tier] = Counter()

    def holder(self, name: str, tier: str) -> int:
        return self.index.add_holder(name, tier)

    def name_of(self, name: str, path: Path) -> int:
        return key(4 * NAMES.index(name), path)

    def tick(self) -> int:
        self.stamp += 1
        return self.stamp

    @rule(
        name=st.sampled_from(NAMES),
        tier=st.sampled_from(TIERS[:2]),
        path=full_paths,
        start=st.integers(0, 4),
    )
    def store(self, name, tier, path, start):
        start = min(start, len(path) - 1)
        parent, tail = path[:start], prefixes(path)[start:]
        is_known = not parent or any(
            self.counts[name, each][parent] for each in TIERS[:2]
        )
        stored = self.index.store(
            self.holder(name, tier),
            self.name_of(name, parent) if parent else None,
            [self.name_of(name, one) for one in tail],
            [block(one) for one in tail],
            TOKENS,
            self.tick(),
        )
        assert stored == is_known
        if stored:
            self.counts[name, tier].update(tail)

    @rule(name=st.sampled_from(NAMES), tier=st.sampled_from(TIERS[:2]), path=full_paths)
    def remove(self, name, tier, path):
        counts = self.counts[name, tier]
        had = self.index.remove_block(self.holder(name, tier), self.name_of(name, path))
        assert had == bool(counts[path])
        counts[path] = max(0, counts[path] - 1)

    @rule(name=st.sampled_from(NAMES), path=full_paths)
    def promise(self, name, path):
        holder = self.holder(name, "promised")
        self.index.insert(holder, chain(path), TOKENS, self.tick())
        for one in prefixes(path):
            self.counts[name, "promised"][one] = 1

    @rule(name=st.sampled_from(NAMES), path=full_paths)
    def take_back(self, name, path):
        """What was promised is undone under its stamp, in whatever slot it is now."""
        holder, stamp = self.holder(name, "promised"), self.tick()
        self.index.insert(holder, chain(path), TOKENS, stamp)
        self.clear(name)
        self.index.rollback(self.holder(name, "promised"), chain(path), 0, stamp)
        for one in prefixes(path):
            self.counts[name, "promised"].pop(one, None)

    @rule(name=st.sampled_from(NAMES))
    def clear(self, name):
        before = self.holder(name, "gpu")
        num_blocks = sum(map(bool, self.counts[name, "gpu"].values()))
        num_blocks += sum(map(bool, self.counts[name, "host"].values()))
        has_moved = self.index.clear_backend(name)
        assert has_moved == (self.holder(name, "gpu") != before) == (num_blocks > 2)
        for tier in TIERS[:2]:
            self.counts[name, tier].clear()

    @rule(name=st.sampled_from(NAMES))
    def go_and_come(self, name):
        self.index.remove_backend(name)
        self.begin(name)

    @rule(num_blocks=st.integers(1, 5))
    def sweep(self, num_blocks):
        assert self.index.sweep(num_blocks) == self.index.has_left

    @rule(num_blocks=st.none() | st.integers(0, 12))
    def bound_what_is_promised(self, num_blocks):
        """A bound beyond all that there is evicts nothing, and moves with a wipe."""
        capacity = None if num_blocks is None else 1000 + num_blocks
        self.index.set_capacity(self.holder("a", "promised"), capacity)

    @invariant()
    def has_what_the_model_has(self):
        self.index.check_integrity()
        for (name, tier), counts in self.counts.items():
            num_blocks = sum(map(bool, counts.values()))
            assert self.index.blocks(self.holder(name, tier)) == num_blocks

    @invariant()
    def matches_what_the_model_matches(self):
        for path in ((0, 0, 0, 0, 0), (0, 1, 0, 1, 0), (1, 0, 0, 0, 1), (1,) * 5):
            match = self.index.match(chain(path))
            for name in NAMES:
                slot = self.index.holders.slot(name)
                assert match.gpu[slot] == self.leading(name, path, "gpu", "promised")
                assert match.host is not None
                reach = match.gpu[slot] + match.host[slot]
                assert reach == self.leading(name, path, *TIERS)

    def leading(self, name: str, path: Path, *tiers: str) -> int:
        found = 0
        for one in prefixes(path):
            if not any(self.counts[name, tier][one] for tier in tiers):
                break
            found += 1
        return found

    def teardown(self):
        while self.index.sweep(3):
            pass
        for name in NAMES:
            self.index.remove_backend(name)
        while self.index.sweep(3):
            pass
        assert (self.index.num_blocks, self.index.num_bytes) == (0, 0)
        self.index.check_integrity()


TestLeaving = LeavingMachine.TestCase
TestLeaving.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
