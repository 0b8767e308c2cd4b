"""The prefix index against a naive model: a dict of counted blocks a holder."""

import gc
import tracemalloc
from collections import Counter
from itertools import product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from xxhash import xxh3_64_intdigest

from warmroute.policies.errors import PolicyError
from warmroute.policies.kv.blocks import hash_text
from warmroute.policies.kv.radix import PrefixIndex

TOKENS = 4
DEPTH = 5

Path = tuple[int, ...]
paths = st.lists(st.integers(0, 1), max_size=DEPTH).map(tuple)
full_paths = st.lists(st.integers(0, 1), min_size=1, max_size=DEPTH).map(tuple)


def block(path: Path) -> int:
    return xxh3_64_intdigest(bytes(path), 1)


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
        self.announced: set[Path] = set()

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

    def is_present(self, path: Path) -> bool:
        return any(
            held[: len(path)] == path
            for counts in self.counts.values()
            for held in counts
        )

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


class IndexMachine(RuleBasedStateMachine):
    """Two holders are mirrored, with eviction; two are fed by counted events."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.mirrors = [self.index.add_holder("a"), self.index.add_holder("b")]
        self.sources = [
            self.index.add_holder("c"),
            self.index.add_holder("c", "host"),
            self.index.add_holder("a", "disk"),
        ]
        self.model = NaiveIndex(self.mirrors + self.sources)
        self.stamp = 0
        self.dispatched: list[tuple[int, Path, int, int]] = []

    def tick(self) -> int:
        self.stamp += 1
        return self.stamp

    @rule(which=st.integers(0, 1), path=full_paths)
    def insert(self, which, path):
        holder, stamp = self.mirrors[which], self.tick()
        held = self.model.insert(holder, path, stamp)
        self.evict_model(holder)
        assert held == self.index.insert(holder, chain(path), TOKENS, stamp)
        self.dispatched.append((holder, path, held, stamp))

    @rule(which=st.integers(0, 1), path=full_paths)
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
        is_known = not parent or (
            parent in self.model.announced and self.model.is_present(parent)
        )
        stored = self.index.store(
            holder,
            block(parent) if parent else None,
            chain(path)[len(parent) :],
            TOKENS,
            self.tick(),
        )
        assert stored or not is_known
        if stored:
            assert not parent or self.model.is_present(parent)
            self.model.counts[holder].update(prefixes(path)[len(parent) :])
            self.model.announced.update(prefixes(path)[len(parent) :])

    @rule(which=st.integers(0, 4), path=full_paths)
    def remove_block(self, which, path):
        holder = (self.mirrors + self.sources)[which]
        counts = self.model.counts[holder]
        assert bool(counts[path]) == self.index.remove_block(holder, block(path))
        if counts[path] > 1:
            counts[path] -= 1
        else:
            self.model.drop(holder, path)

    @rule(which=st.integers(0, 4))
    def wipe(self, which):
        holder = (self.mirrors + self.sources)[which]
        self.index.remove_holder(holder)
        self.model.drop_behind(holder, ())

    @rule(which=st.integers(0, 4), path=paths)
    def remove_prefix(self, which, path):
        holder = (self.mirrors + self.sources)[which]
        self.index.remove_prefix(chain(path), holder)
        self.model.drop_behind(holder, path)

    @rule(path=full_paths)
    def remove_prefix_everywhere(self, path):
        self.index.remove_prefix(chain(path))
        for holder in self.model.counts:
            self.model.drop_behind(holder, path)

    @rule(which=st.integers(0, 1), path=full_paths, keep=st.integers(0, DEPTH))
    def truncate(self, which, path, keep):
        holder = self.mirrors[which]
        self.index.truncate(holder, chain(path), keep)
        if keep < len(path):
            self.model.drop(holder, path[: keep + 1])
            self.model.drop_behind(holder, path[: keep + 1])

    @rule(which=st.integers(0, 1), path=full_paths, age=st.integers(0, 8))
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

    @rule(which=st.integers(0, 1), num_tokens=st.integers(0, 30))
    def evict(self, which, num_tokens):
        holder = self.mirrors[which]
        self.index.evict(holder, num_tokens)
        self.model.evict(holder, -(-num_tokens // TOKENS))

    @rule(which=st.integers(0, 1), num_blocks=st.none() | st.integers(0, 12))
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
    def matches_what_the_model_matches(self):
        for path in product((0, 1), repeat=DEPTH):
            match = self.index.match(chain(path))
            assert match.host is not None
            assert match.disk is not None
            for name in "abc":
                slot = self.index.holders.slot(name)
                tiers = [one for one in self.model.counts if one // 3 == slot]
                one, two, three = (
                    self.model.leading(
                        tuple(held for held in tiers if held % 3 <= tier), path
                    )
                    for tier in range(3)
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
        self.holder = [self.index.add_holder("a"), self.index.add_holder("b")]
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
        assert self.index.store(self.holder[which], None, hashes, TOKENS, self.stamp)

    @invariant()
    def stays_below_the_cap(self):
        self.index.check_integrity()
        assert self.index.num_bytes <= self.index.max_bytes


CappedMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None
)
TestIndexUnderCap = CappedMachine.TestCase


class TestPrefixIndex:
    def test_a_growing_chat_stays_one_run(self):
        """Turns of a chat on one backend extend the run of the turn before."""
        index = PrefixIndex()
        a = index.add_holder("a")
        for turn in range(1, 20):
            index.insert(a, long_chain(1, 10 * turn), 16, float(turn))

        assert (
            repr(index)
            == "<PrefixIndex [Blocks: 190, runs: 1, 2850 of 268435456 bytes]>"
        )

    def test_least_recently_used_goes_first_over_all_backends(self):
        """Under the cap the oldest prompt goes, whichever backend has it."""
        index = PrefixIndex(4 * 1_200)
        a, b = index.add_holder("a"), index.add_holder("b")
        for stamp, (holder, seed) in enumerate([(a, 1), (b, 2), (b, 3), (a, 1)], 1):
            index.insert(holder, long_chain(seed, 4), 16, float(stamp))
        index.insert(a, long_chain(4, 4), 16, 9.0)
        index.insert(a, long_chain(5, 4), 16, 10.0)

        assert [gpu(index, "a", long_chain(seed, 4)) for seed in range(1, 6)] == [
            4,
            0,
            0,
            4,
            4,
        ]
        assert [gpu(index, "b", long_chain(seed, 4)) for seed in (2, 3)] == [0, 4]

    def test_insert_larger_than_the_cap_keeps_its_head(self):
        """Of a prompt that does not fit, the leading blocks stay."""
        index = PrefixIndex(10_000)
        a = index.add_holder("a")
        index.insert(a, long_chain(1, 5), 16, 1.0)
        hashes = long_chain(2, 5_000)
        index.insert(a, hashes, 16, 2.0)

        assert 900 < gpu(index, "a", hashes) < 1_111
        assert gpu(index, "a", long_chain(1, 5)) == 0

    def test_full_index_keeps_learning(self):
        """With the cap long reached, the newest prompt is always there."""
        index = PrefixIndex(50_000)
        a = index.add_holder("a")
        for seed in range(500):
            hashes = long_chain(seed, 30)
            index.insert(a, hashes, 16, float(seed))
            assert gpu(index, "a", hashes) == 30

        assert index.num_bytes > 45_000
        index.check_integrity()

    def test_removed_backend_frees_its_number(self):
        """The next backend takes over the slot and inherits no block."""
        index = PrefixIndex()
        a, b = index.add_holder("a"), index.add_holder("b")
        hashes = long_chain(1, 8)
        index.insert(a, hashes, 16, 1.0)
        index.insert(b, hashes[:4], 16, 2.0)
        index.remove_backend("a")

        assert a == index.add_holder("c")
        assert gpu(index, "c", hashes) == 0
        assert gpu(index, "b", hashes) == 4
        index.check_integrity()

    def test_touch_saves_from_eviction(self):
        """What was touched last goes last."""
        index = PrefixIndex()
        a = index.add_holder("a")
        index.set_capacity(a, 8 * 16)
        index.insert(a, long_chain(1, 4), 16, 1.0)
        index.insert(a, long_chain(2, 4), 16, 2.0)
        assert index.last_used(a, long_chain(1, 4)) == 1.0
        index.touch(a, long_chain(1, 4), 3.0)
        index.insert(a, long_chain(3, 3), 16, 4.0)

        assert index.last_used(a, long_chain(1, 4)) == 3.0
        assert [gpu(index, "a", long_chain(one, 4)) for one in (1, 2, 3)] == [4, 1, 3]

    def test_unknown_parent_changes_nothing(self):
        """Blocks behind a parent that is not here are refused, not rooted."""
        index = PrefixIndex()
        a = index.add_holder("a")
        hashes = long_chain(1, 8)

        assert not index.store(a, hashes[3], hashes[4:], 16, 1.0)
        assert index.blocks(a) == 0
        assert index.store(a, None, hashes[:4], 16, 2.0)
        assert index.store(a, hashes[3], hashes[4:], 16, 3.0)
        assert gpu(index, "a", hashes) == 8

    def test_unknown_tier_is_refused(self):
        """A tier that does not exist is named together with those that do."""
        with pytest.raises(PolicyError, match=r"unknown tier 'ssd' \(known: gpu, host"):
            PrefixIndex().add_holder("a", "ssd")

    def test_match_compares_runs_not_blocks(self):
        """A long chain costs one hash comparison a run, and log n in the last."""
        index = PrefixIndex()
        a = index.add_holder("a")
        index.insert(a, long_chain(1, 2_048), 16, 1.0)

        class CountingChain(list[int]):
            reads = 0

            def __getitem__(self, at):
                CountingChain.reads += 1
                return super().__getitem__(at)

        assert gpu(index, "a", CountingChain(long_chain(1, 2_048))) == 2_048
        assert CountingChain.reads < 3
        assert gpu(index, "a", CountingChain(long_chain(1, 2_000))) == 2_000
        assert CountingChain.reads < 20


def fill_with_prompts(index: PrefixIndex, num_blocks: int, length: int) -> None:
    holders = [index.add_holder(f"b{number}") for number in range(4)]
    for holder in holders:
        index.set_capacity(holder, 10**9)
    for seed in range(num_blocks // length):
        hashes = long_chain(seed, length)
        index.insert(holders[seed % 4], hashes, 16, float(2 * seed))
        if seed % 3 == 0:
            index.insert(holders[(seed + 1) % 4], hashes, 16, float(2 * seed + 1))


def fill_with_events(index: PrefixIndex, num_blocks: int, length: int) -> None:
    holder = index.add_holder("a")
    for seed in range(num_blocks // length):
        index.store(holder, None, long_chain(seed, length), 16, float(seed))


class TestMemory:
    @pytest.mark.parametrize(
        ("fill", "length", "num_blocks"),
        [
            pytest.param(fill_with_prompts, 1, 30_000, id="shortest prompts"),
            pytest.param(fill_with_prompts, 4, 80_000, id="short prompts"),
            pytest.param(fill_with_prompts, 512, 1_000_000, id="long prompts"),
            pytest.param(fill_with_events, 256, 200_000, id="events"),
        ],
    )
    def test_process_grows_no_more_than_the_books_say(self, fill, length, num_blocks):
        """Counted bytes stay below the cap, and what Python allocates near it."""
        cap = 4 * 2**20
        index = PrefixIndex(cap)
        gc.collect()
        tracemalloc.start()
        try:
            fill(index, num_blocks, length)
            gc.collect()
            grown, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert 0.9 * cap < index.num_bytes <= cap
        assert grown <= 1.25 * cap

    @pytest.mark.parametrize("fill", [fill_with_prompts, fill_with_events])
    def test_long_runs_take_few_bytes_a_block(self, fill):
        """In runs of 2,048 blocks, one takes at most 130 bytes."""
        index = PrefixIndex()
        fill(index, 50_000, 2_048)

        assert index.num_bytes <= 130 * index.num_blocks
