"""The prefix index against a naive model: counted blocks a holder, no structure."""

from collections import Counter
from itertools import product

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from xxhash import xxh3_64_intdigest

from warmroute.policies.kv.blocks import hash_text
from warmroute.policies.kv.holders import NUM_TIERS
from warmroute.policies.kv.known import Known
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.policies.kv.run import Run

TOKENS = 4
DEPTH = 5

Path = tuple[int, ...]
paths = st.lists(st.integers(0, 1), max_size=DEPTH).map(tuple)
full_paths = st.lists(st.integers(0, 1), min_size=1, max_size=DEPTH).map(tuple)


def block(path: Path) -> int:
    return xxh3_64_intdigest(bytes(path), 1)


def key(holder: int, path: Path) -> int:
    """Return what the engine of *holder* calls a block: nothing that we know."""
    return xxh3_64_intdigest(bytes(path), 100 + holder // NUM_TIERS)


def keys(holder: int, path: Path, start: int = 0) -> list[int]:
    return [key(holder, prefix) for prefix in prefixes(path)[start:]]


def prefixes(path: Path) -> list[Path]:
    return [path[:length] for length in range(1, len(path) + 1)]


def chain(path: Path) -> list[int]:
    return [block(prefix) for prefix in prefixes(path)]


def long_chain(seed: int, length: int) -> list[int]:
    return hash_text(bytes(256 * length), seed)


def gpu(index: PrefixIndex, name: str, hashes: list[int]) -> int:
    return index.match(hashes).gpu[index.holders.slot(name)]


class NaiveIndex:
    """The model: every holder's blocks with counts, stamps, and no structure."""

    def __init__(self, holders: list[int]) -> None:
        self.counts: dict[int, Counter[Path]] = {one: Counter() for one in holders}
        self.stamps: dict[int, dict[Path, int]] = {one: {} for one in holders}

    def insert(self, holder: int, path: Path, stamp: int) -> int:
        leading = self.leading((holder,), path)
        for prefix in prefixes(path):
            self.counts[holder][prefix] = max(1, self.counts[holder][prefix])
            self.stamps[holder][prefix] = stamp
        return leading

    def leading(self, holders: tuple[int, ...], path: Path) -> int:
        found = 0
        for prefix in prefixes(path):
            if not any(self.counts[one][prefix] for one in holders):
                break
            found += 1
        return found

    def drop(self, holder: int, path: Path) -> None:
        self.counts[holder].pop(path, None)
        self.stamps[holder].pop(path, None)

    def evict(self, holder: int, num_blocks: int) -> None:
        for _ in range(min(num_blocks, len(self.counts[holder]))):
            stamps = self.stamps[holder]
            self.drop(holder, min(stamps, key=lambda one: (stamps[one], -len(one))))

    def drop_behind(self, holder: int, path: Path, before: int = 10**9) -> None:
        for held in list(self.counts[holder]):
            is_behind = held[: len(path)] == path and len(held) > len(path)
            if is_behind and self.stamps[holder].get(held, 0) < before:
                self.drop(holder, held)

    def rollback(self, holder: int, path: Path, keep: int, stamp: int) -> None:
        for prefix in prefixes(path)[keep:]:
            if self.stamps[holder].get(prefix) == stamp:
                self.drop(holder, prefix)


def use_small_tables(index: PrefixIndex) -> None:
    """Let keys fill many tables, as those of millions of blocks do."""
    for owner in index.holders.all:
        owner.known = Known(2)


class IndexMachine(RuleBasedStateMachine):
    """Three holders are mirrored, with eviction; three are fed by counted events."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.mirrors = [self.index.add_holder("a"), self.index.add_holder("b")]
        self.sources = [
            self.index.add_holder("c"),
            self.index.add_holder("c", "host"),
            self.index.add_holder("a", "disk"),
            self.index.add_holder("c", "promised"),
        ]
        use_small_tables(self.index)
        self.mirrors.append(self.sources.pop())
        self.model = NaiveIndex(self.mirrors + self.sources)
        self.stamp = 0
        self.dispatched: list[tuple[int, Path, int, int]] = []
        self.ended: list[tuple[int, Path, Run]] = []
        self.found: dict[Path, tuple[int, list[Run], int]] = {}

    def tick(self) -> int:
        self.stamp += 1
        return self.stamp

    @rule(which=st.integers(0, 2), path=full_paths)
    def insert(self, which, path):
        holder, stamp = self.mirrors[which], self.tick()
        held = self.model.insert(holder, path, stamp)
        self.evict_model(holder)
        assert held == self.index.insert(holder, chain(path), TOKENS, stamp)
        self.dispatched.append((holder, path, held, stamp))

    @rule(path=full_paths)
    def find(self, path):
        self.found[path] = (self.index.version, *self.index.path(chain(path)))

    @rule(which=st.integers(0, 2), path=full_paths)
    def insert_where_found(self, which, path):
        holder, stamp = self.mirrors[which], self.tick()
        found, depth = self.index.path(chain(path))
        held = self.model.insert(holder, path, stamp)
        self.evict_model(holder)
        assert held == self.index.insert(
            holder, chain(path), TOKENS, stamp, found, depth
        )
        self.ended.append((holder, path, found[-1]))

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def touch_from_the_end(self, data):
        """The run in which a chain once ended is as good as a search."""
        holder, path, last = data.draw(st.sampled_from(self.ended))
        found, depth = self.index.path(chain(path))
        touched = [run for run in found if holder in run.used and run.end <= depth]
        stamp = self.tick()
        self.index.touch(holder, chain(path), stamp, last)
        assert touched == [
            run for run in self.index.root.walk() if run.used.get(holder) == stamp
        ]
        for run in touched:
            for prefix in prefixes(path)[run.start : run.start + run.held(holder)]:
                self.model.stamps[holder][prefix] = stamp

    @rule(which=st.integers(0, 2), path=full_paths)
    def insert_and_touch(self, which, path):
        holder, _ = self.mirrors[which], self.insert(which, path)
        stamp = self.tick()
        self.index.touch(holder, chain(path), stamp)
        for prefix in prefixes(path):
            if prefix in self.model.counts[holder]:
                self.model.stamps[holder][prefix] = stamp

    @rule(which=st.integers(0, 2), parent=paths, tail=full_paths)
    def store(self, which, parent, tail):
        holder, path = self.sources[which], parent + tail
        is_known = not parent or self.is_known(holder, parent)
        stored = self.index.store(
            holder,
            key(holder, parent) if parent else None,
            keys(holder, path, len(parent)),
            chain(path)[len(parent) :],
            TOKENS,
            self.tick(),
        )
        assert stored == is_known
        if stored:
            self.model.counts[holder].update(prefixes(path)[len(parent) :])

    def is_known(self, holder: int, path: Path) -> bool:
        """Say whether any announcing tier of the backend has a block."""
        return any(
            self.model.counts[one][path]
            for one in self.sources
            if one // NUM_TIERS == holder // NUM_TIERS
        )

    @rule(which=st.integers(0, 2), path=full_paths)
    def remove_block(self, which, path):
        holder = self.sources[which]
        counts = self.model.counts[holder]
        had = self.index.remove_block(holder, key(holder, path))
        assert bool(counts[path]) == had
        if counts[path] > 1:
            counts[path] -= 1
        else:
            self.model.drop(holder, path)

    @rule(which=st.integers(0, 2), path=full_paths)
    def find_key(self, which, path):
        holder = self.sources[which]
        found = self.index.find(holder, key(holder, path))
        assert (found == block(path)) == self.is_known(holder, path)

    @rule(which=st.integers(0, 5))
    def wipe(self, which):
        holder = (self.mirrors + self.sources)[which]
        self.index.remove_holder(holder)
        self.model.drop_behind(holder, ())

    @rule(which=st.integers(0, 2), path=full_paths, keep=st.integers(0, DEPTH))
    def truncate(self, which, path, keep):
        holder = self.mirrors[which]
        self.index.truncate(holder, chain(path), keep)
        if keep < len(path):
            self.model.drop(holder, path[: keep + 1])
            self.model.drop_behind(holder, path[: keep + 1])

    @rule(which=st.integers(0, 2), path=full_paths, age=st.integers(0, 8))
    def truncate_what_is_old(self, which, path, age):
        holder, before = self.mirrors[which], self.stamp - age
        keep = len(path) - 1
        self.index.truncate(holder, chain(path), keep, before)
        if self.model.stamps[holder].get(path, before) < before:
            self.model.drop(holder, path)
        self.model.drop_behind(holder, path, before)

    @precondition(lambda self: self.dispatched)
    @rule(data=st.data())
    def rollback(self, data):
        ticket = data.draw(st.sampled_from(self.dispatched))
        self.dispatched.remove(ticket)
        holder, path, held, stamp = ticket
        self.index.rollback(holder, chain(path), held, stamp)
        self.model.rollback(holder, path, held, stamp)

    @rule(which=st.integers(0, 2), num_tokens=st.integers(0, 30))
    def evict(self, which, num_tokens):
        holder = self.mirrors[which]
        self.index.evict(holder, num_tokens)
        self.model.evict(holder, -(-num_tokens // TOKENS))

    @rule(which=st.integers(0, 2), num_blocks=st.none() | st.integers(0, 12))
    def set_capacity(self, which, num_blocks):
        holder = self.mirrors[which]
        self.index.set_capacity(holder, num_blocks and num_blocks * TOKENS)
        self.evict_model(holder)

    def evict_model(self, holder: int) -> None:
        capacity = self.index.holders.all[holder].capacity
        if capacity is not None:
            held = len(self.model.counts[holder])
            self.model.evict(holder, held - capacity // TOKENS)

    @invariant()
    def holds_what_the_model_holds(self):
        self.index.check_integrity()
        for counts in self.model.counts.values():
            for path in [one for one, count in counts.items() if not count]:
                del counts[path]
        for holder, counts in self.model.counts.items():
            assert len(counts) == self.index.blocks(holder)
            assert len(counts) * TOKENS == self.index.tokens(holder)

    @invariant()
    def finds_the_same_under_the_same_version(self):
        for path, (version, runs, depth) in self.found.items():
            if version == self.index.version:
                assert (runs, depth) == self.index.path(chain(path))

    @invariant()
    def matches_what_the_model_matches(self):
        for path in product((0, 1), repeat=DEPTH):
            match = self.index.match(chain(path))
            assert match.host is not None
            assert match.disk is not None
            for name in "abc":
                slot = self.index.holders.slot(name)
                tiers = [one for one in self.model.counts if one // NUM_TIERS == slot]
                one, two, three = (
                    self.model.leading(
                        tuple(held for held in tiers if held % NUM_TIERS <= tier), path
                    )
                    for tier in (1, 2, 3)
                )
                found = (match.gpu[slot], match.host[slot], match.disk[slot])
                assert (one, two - one, three - two) == found


IndexMachine.TestCase.settings = settings(
    max_examples=50, stateful_step_count=25, deadline=None
)
TestIndexAgainstModel = IndexMachine.TestCase


class CappedMachine(RuleBasedStateMachine):
    """Under a cap of a few runs nothing is held that was not put in."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(9_000)
        self.holder = [
            self.index.add_holder(name, tier)
            for tier in ("gpu", "host")
            for name in "ab"
        ]
        use_small_tables(self.index)
        self.index.set_capacity(self.holder[1], 10**9)
        self.stamp = 0

    @rule(which=st.integers(0, 1), seed=st.integers(0, 9), length=st.integers(1, 300))
    def insert(self, which, seed, length):
        self.stamp += 1
        hashes = long_chain(seed, length)
        self.index.insert(self.holder[which], hashes, TOKENS, self.stamp)
        assert gpu(self.index, "ab"[which], hashes) > 0

    @rule(which=st.integers(0, 1), seed=st.integers(0, 9), length=st.integers(1, 300))
    def store(self, which, seed, length):
        self.stamp += 1
        hashes = long_chain(seed, length)
        holder = self.holder[2 + which]
        assert self.index.store(holder, None, hashes, hashes, TOKENS, self.stamp)

    @invariant()
    def stays_below_the_cap(self):
        self.index.check_integrity()
        assert self.index.num_bytes <= self.index.max_bytes


CappedMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None
)
TestIndexUnderCap = CappedMachine.TestCase


def test_making_room_leaves_what_was_just_inserted() -> None:
    index = PrefixIndex(9_000)
    mirror = index.add_holder("a")
    sources = [index.add_holder(name, "host") for name in "ab"]
    first, hashes = long_chain(0, 1), long_chain(1, 19)
    for stamp in range(6):
        index.insert(mirror, first, TOKENS, stamp)
    for stamp, source in enumerate([sources[0], *sources], 6):
        assert index.store(source, None, hashes, hashes, TOKENS, stamp)
    index.insert(mirror, hashes, TOKENS, 9)
    assert gpu(index, "a", hashes) > 0
    assert index.num_bytes <= index.max_bytes
