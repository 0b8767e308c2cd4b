"""The prefix index: what goes, what stays, what it costs, and its cap."""

import gc
import tracemalloc

import pytest

from warmroute.policies.errors import PolicyError
from warmroute.policies.kv.blocks import hash_text
from warmroute.policies.kv.radix import PrefixIndex


def long_chain(seed: int, length: int) -> list[int]:
    return hash_text(bytes(256 * length), seed)


def gpu(index: PrefixIndex, name: str, hashes: list[int]) -> int:
    return index.match(hashes).gpu[index.holders.slot(name)]


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

    def test_a_second_name_of_a_block_leaves_nothing_behind(self):
        """It goes with its first one, and nothing is counted that cannot go."""
        index = PrefixIndex()
        a = index.add_holder("a")
        empty = index.num_bytes
        index.store(a, None, [1, 2, 3], long_chain(1, 3), 16, 1.0)
        index.store(a, None, [1, 8, 9], long_chain(1, 3), 16, 2.0)
        assert not index.remove_block(a, 9)
        assert [index.remove_block(a, key) for key in (3, 2, 1, 1)] == [True] * 4
        index.check_integrity()
        assert (index.blocks(a), index.num_bytes) == (0, empty)

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

    def test_lower_cap_makes_room_at_once(self):
        """A cap set anew, by a reload, holds from then on."""
        index = PrefixIndex(50_000)
        a = index.add_holder("a")
        for seed in range(30):
            index.insert(a, long_chain(seed, 30), 16, float(seed))
        index.max_bytes = 5_000

        assert index.num_bytes <= 5_000
        assert gpu(index, "a", long_chain(29, 30)) == 30
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
        assert index.last_used(a, index.path(long_chain(1, 4))[0]) == 1.0
        index.touch(a, long_chain(1, 4), 3.0)
        index.insert(a, long_chain(3, 3), 16, 4.0)

        assert index.last_used(a, index.path(long_chain(1, 4))[0]) == 3.0
        assert [gpu(index, "a", long_chain(one, 4)) for one in (1, 2, 3)] == [4, 1, 3]

    def test_blocks_that_others_have_count_against_the_own_capacity(self):
        """An insert that adds no block to the tree is bounded all the same."""
        index = PrefixIndex()
        a, b = index.add_holder("a"), index.add_holder("b")
        index.set_capacity(b, 5 * 16)
        for holder in (a, b):
            index.insert(holder, long_chain(1, 8), 16, float(holder + 1))

        assert (gpu(index, "a", long_chain(1, 8)), index.blocks(b)) == (8, 5)

    def test_run_that_other_blocks_have_grown_into_is_not_touched(self):
        """A run that was cut and grew by another chain is no longer the old end."""
        index = PrefixIndex()
        a = index.add_holder("a")
        old = long_chain(1, 8)
        new = old[:4] + long_chain(2, 4)
        found, depth = index.path(old)
        index.insert(a, old, 16, 1.0, found, depth)
        index.evict(a, 4 * 16)
        index.insert(a, new, 16, 2.0)
        assert index.path(new)[0] == found
        index.touch(a, old, 3.0, found[-1])

        assert index.last_used(a, index.path(new)[0]) == 2.0

    @pytest.mark.parametrize("has_gone", [False, True])
    def test_touch_from_the_end_finds_what_a_search_finds(self, has_gone):
        """Parts in front of the last run are touched, whether it is still there."""
        index = PrefixIndex()
        a = index.add_holder("a")
        chain = long_chain(1, 8)
        found, depth = index.path(chain)
        index.insert(a, chain, 16, 1.0, found, depth)
        index.insert(a, chain[:4], 16, 2.0)
        if has_gone:
            index.truncate(a, chain, 4)
        index.touch(a, chain, 3.0, found[-1])

        touched = [run.used[a] for run in index.path(chain)[0]]
        assert touched == ([3.0] if has_gone else [3.0, 3.0])
        index.check_integrity()

    def test_unknown_parent_changes_nothing(self):
        """Blocks behind a parent that is not here are refused, not rooted."""
        index = PrefixIndex()
        a = index.add_holder("a")
        hashes = long_chain(1, 8)

        assert not index.store(a, hashes[3], hashes[4:], hashes[4:], 16, 1.0)
        assert index.blocks(a) == 0
        assert index.store(a, None, hashes[:4], hashes[:4], 16, 2.0)
        assert index.store(a, hashes[3], hashes[4:], hashes[4:], 16, 3.0)
        assert gpu(index, "a", hashes) == 8

    def test_unknown_tier_is_refused(self):
        """A tier that does not exist is named together with those that do."""
        with pytest.raises(PolicyError, match=r"unknown tier 'ssd'.*gpu, promised"):
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
        hashes = long_chain(seed, length)
        index.store(holder, None, hashes, hashes, 16, float(seed))


class TestEvictionAfterASplit:
    def test_the_deeper_half_goes_first(self) -> None:
        """A run that another holder's chain has split is still cut from its tail."""
        index = PrefixIndex()
        a, b = index.add_holder("a"), index.add_holder("b")
        index.set_capacity(a, 100)
        hashes = [11, 12]
        index.insert(a, hashes, 4, 1)
        index.insert(b, hashes[:1], 4, 2)
        index.evict(a, 4)
        assert index.match(hashes).gpu == [1, 1]


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

    @pytest.mark.parametrize("fill", [fill_with_prompts, fill_with_events])
    def test_the_garbage_collector_walks_through_runs_not_blocks(self, fill):
        """A collection must not take longer for every block in the caches."""
        before = num_walked()
        index = PrefixIndex()
        fill(index, 50_000, 2_048)

        assert num_walked() - before < index.num_blocks / 10


def num_walked() -> int:
    gc.collect()
    return sum(len(gc.get_referents(one)) for one in gc.get_objects())
