"""Each eviction rule against its definition, written down naively."""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.eviction_rig import FakeClock, SingleBlockCache, facts

from warmroute.policies.eviction.arc import Arc
from warmroute.policies.eviction.base import BlockEviction, BlockFacts
from warmroute.policies.eviction.fifo import Fifo
from warmroute.policies.eviction.gdsf import Gdsf
from warmroute.policies.eviction.lfu import Lfu
from warmroute.policies.eviction.lrfu import Lrfu
from warmroute.policies.eviction.lru import Lru
from warmroute.policies.eviction.s3fifo import S3Fifo
from warmroute.policies.eviction.workload_aware import WorkloadAware

Victims = list[int]
Model = Callable[[Sequence[int], int], Victims]

seeds = st.integers(0, 2**32)
capacities = st.integers(1, 12)


def fifo_victims(blocks: Sequence[int], capacity: int) -> Victims:
    cached: list[int] = []
    victims = []
    for block in blocks:
        if block not in cached:
            if len(cached) == capacity:
                victims.append(cached.pop(0))
            cached.append(block)
    return victims


def lru_victims(blocks: Sequence[int], capacity: int) -> Victims:
    cached: list[int] = []
    victims = []
    for block in blocks:
        if block in cached:
            cached.remove(block)
        elif len(cached) == capacity:
            victims.append(cached.pop(0))
        cached.append(block)
    return victims


def lfu_victims(blocks: Sequence[int], capacity: int) -> Victims:
    counts: Counter[int] = Counter()
    last: dict[int, int] = {}
    victims = []
    for time, block in enumerate(blocks):
        if block not in counts and len(counts) == capacity:
            victim = min(counts, key=lambda one: (counts[one], last[one]))
            victims.append(victim)
            del counts[victim]
        counts[block] += 1
        last[block] = time
    return victims


def s3fifo_victims(blocks: Sequence[int], capacity: int) -> Victims:
    small_size = max(1, round(0.1 * capacity))
    small: list[int] = []
    main: list[int] = []
    ghosts: list[int] = []
    uses_of: dict[int, int] = {}
    victims = []

    def evict() -> int:
        while True:
            if small and (len(small) >= small_size or not main):
                block = small.pop(0)
                if uses_of[block] > 1:
                    uses_of[block] = 0
                    main.append(block)
                    continue
                ghosts.append(block)
                del ghosts[: max(0, len(ghosts) - (capacity - small_size))]
                return block
            block = main.pop(0)
            if not uses_of[block]:
                return block
            uses_of[block] -= 1
            main.append(block)

    for block in blocks:
        if block in small or block in main:
            uses_of[block] = min(3, uses_of[block] + 1)
            continue
        if len(small) + len(main) == capacity:
            victims.append(evict())
        uses_of[block] = 0
        if block in ghosts:
            ghosts.remove(block)
            main.append(block)
        else:
            small.append(block)
    return victims


def arc_victims(blocks: Sequence[int], capacity: int) -> Victims:
    """Figure 4 of the paper, but evicting before the target moves."""
    t1: list[int] = []
    t2: list[int] = []
    b1: list[int] = []
    b2: list[int] = []
    target = 0.0
    victims = []

    def trim() -> None:
        del b1[: max(0, len(t1) + len(b1) - capacity)]
        total = len(t1) + len(t2) + len(b1) + len(b2)
        del b2[: max(0, total - 2 * capacity)]

    for block in blocks:
        if block in t1 or block in t2:
            (t1 if block in t1 else t2).remove(block)
            t2.append(block)
            continue
        if len(t1) + len(t2) == capacity:
            chosen, ghosts = (t1, b1) if t1 and len(t1) > target else (t2, b2)
            if not chosen:
                chosen, ghosts = t1, b1
            victims.append(chosen.pop(0))
            ghosts.append(victims[-1])
            trim()
        if block in b1:
            target = min(target + max(1.0, len(b2) / len(b1)), capacity)
            b1.remove(block)
            t2.append(block)
        elif block in b2:
            target = max(target - max(1.0, len(b1) / len(b2)), 0.0)
            b2.remove(block)
            t2.append(block)
        else:
            t1.append(block)
        trim()
    return victims


@pytest.mark.parametrize(
    ("policy", "model"),
    [
        (Fifo, fifo_victims),
        (Lru, lru_victims),
        (Lfu, lfu_victims),
        (S3Fifo, s3fifo_victims),
        (Arc, arc_victims),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
@given(seed=seeds, capacity=capacities)
def test_victims_are_those_of_the_definition(
    policy: type[BlockEviction], model: Model, seed: int, capacity: int
) -> None:
    """The victims and their order are what the naive lists say."""
    blocks = skewed_uses(Random(seed))
    cache = SingleBlockCache(policy, capacity)
    for block in blocks:
        cache.use(block)
    assert cache.victims == model(blocks, capacity)


class TestLru:
    def test_release_counts_as_use(self) -> None:
        """A block that a request held is as recent as the request's end."""
        lru = Lru(capacity=3, clock=FakeClock())
        for block in (0, 8, 16):
            lru.inserted(block, facts(block))
        lru.held(0)
        lru.freed(0)
        assert lru.evict(3) == [8, 16, 0]

    @pytest.mark.parametrize(("is_touched", "order"), [(False, [0, 8]), (True, [8, 0])])
    def test_use_ends_a_demotion(self, is_touched: bool, order: list[int]) -> None:
        """A held block that was demoted goes first when it is freed, unless used."""
        lru = Lru(capacity=2, clock=FakeClock())
        lru.inserted(0, facts(0))
        lru.held(0)
        lru.inserted(8, facts(8))
        lru.demoted(0)
        if is_touched:
            lru.touched(0)
        lru.freed(0)
        assert lru.evict(2) == order


class TestFifo:
    def test_a_held_block_keeps_its_place(self) -> None:
        """The oldest block is next again as soon as it is freed."""
        fifo = Fifo(capacity=3, clock=FakeClock())
        for block in (0, 8, 16):
            fifo.inserted(block, facts(block))
        fifo.held(0)
        assert fifo.evict(1) == [8]
        fifo.freed(0)
        assert fifo.evict(2) == [0, 16]


class TestLrfu:
    @given(seed=seeds)
    def test_score_is_the_sum_of_decayed_uses(self, seed: int) -> None:
        """The victim has the least sum over its uses, those as a ghost included."""
        rng = Random(seed)
        clock = FakeClock()
        lrfu = Lrfu(capacity=3, clock=clock, half_life_s=100.0)
        times: dict[int, list[float]] = {}
        cached: set[int] = set()
        for _ in range(100):
            block = rng.randrange(6)
            clock.now_s += rng.expovariate(1 / 60)
            if block in cached:
                lrfu.touched(block)
            else:
                if len(cached) == 3:
                    (victim,) = lrfu.evict(1)
                    scores = {one: decayed(times[one], clock.now_s) for one in cached}
                    assert scores[victim] <= min(scores.values()) * (1 + 1e-9)
                    cached.remove(victim)
                lrfu.inserted(block, BlockFacts(0))
                cached.add(block)
            times.setdefault(block, []).append(clock.now_s)

    def test_a_later_use_beats_two_old_ones(self) -> None:
        """After two half-lives two uses count less than one of now."""
        clock = FakeClock()
        lrfu = Lrfu(capacity=2, clock=clock, half_life_s=10.0)
        lrfu.inserted(0, BlockFacts(0))
        lrfu.touched(0)
        clock.now_s += 20.0
        lrfu.inserted(1, BlockFacts(0))
        assert lrfu.evict(1) == [0]

    def test_history_survives_eviction(self) -> None:
        """A popular block that went and came back outranks a new one."""
        lrfu = Lrfu(capacity=2, clock=FakeClock())
        lrfu.inserted(0, BlockFacts(0))
        lrfu.touched(0)
        assert lrfu.evict(1) == [0]
        lrfu.inserted(0, BlockFacts(0))
        lrfu.inserted(1, BlockFacts(0))
        assert lrfu.evict(2) == [1, 0]


class TestGdsf:
    def test_deep_blocks_are_worth_more(self) -> None:
        """Of two leaves used once the one that is cheaper to recompute goes first."""
        gdsf = Gdsf(capacity=4, clock=FakeClock(), block_size=512)
        gdsf.inserted(1, BlockFacts(500, parent=None))
        gdsf.inserted(2, BlockFacts(0))
        assert gdsf.evict(2) == [2, 1]

    def test_a_parent_outlives_its_children(self) -> None:
        """A block is not given up while a child of it is cached."""
        gdsf = Gdsf(capacity=4, clock=FakeClock(), block_size=512)
        gdsf.inserted(1, BlockFacts(500))
        gdsf.inserted(2, BlockFacts(501, parent=1))
        for _ in range(3):
            gdsf.touched(2)
        assert gdsf.evict(2) == [2, 1]

    def test_value_ages_with_the_victims(self) -> None:
        """A block that was popular once goes when the others have caught up."""
        cache = SingleBlockCache(Gdsf, 4)
        for _ in range(10):
            cache.use(0)
        for block in range(8, 8 * 60, 8):
            cache.use(block)
        assert 0 in cache.victims


class TestS3Fifo:
    def test_a_scan_leaves_the_proven_blocks(self) -> None:
        """Blocks used again survive any number of blocks used once."""
        cache = SingleBlockCache(S3Fifo, 20)
        for _ in range(4):
            for block in range(10):
                cache.use(block)
        for block in range(100, 400):
            cache.use(block)
        assert set(range(10)) <= cache.cached

    def test_share_of_the_small_queue_is_an_option(self) -> None:
        """With a small queue of the whole size nothing gets a second chance early."""
        policy = S3Fifo(capacity=4, clock=FakeClock(), small_ratio=1.0)
        for block in (0, 8, 16, 24):
            policy.inserted(block, facts(block))
        assert policy.evict(2) == [0, 8]


class TestWorkloadAware:
    def test_learns_which_turns_come_back(self) -> None:
        """Blocks of a category that is reused outlive those of one that is not."""
        clock = FakeClock()
        policy = WorkloadAware(capacity=64, clock=clock)
        for number in range(0, 400, 2):
            policy.inserted(number, BlockFacts(0, prompt_blocks=4, turn=2))
            policy.inserted(number + 1, BlockFacts(0, prompt_blocks=64, turn=1))
            clock.now_s += 5.0
            policy.touched(number)
            policy.removed(number)
            policy.removed(number + 1)
        policy.inserted(1000, BlockFacts(0, prompt_blocks=4, turn=2))
        clock.now_s += 1.0
        policy.inserted(1001, BlockFacts(0, prompt_blocks=64, turn=1))
        assert policy.evict(2) == [1001, 1000]

    def test_learns_from_blocks_that_went(self) -> None:
        """A reuse after the eviction teaches as well."""
        clock = FakeClock()
        policy = WorkloadAware(capacity=64, clock=clock)
        short, long = BlockFacts(0, prompt_blocks=4), BlockFacts(0, prompt_blocks=64)
        for number in range(400):
            policy.inserted(7, short)
            policy.removed(7)
            policy.inserted(1000 + number, long)
            policy.removed(1000 + number)
            clock.now_s += 5.0
        policy.inserted(8, short)
        clock.now_s += 1.0
        policy.inserted(9, long)
        assert policy.evict(2) == [9, 8]

    def test_the_longest_idle_goes_first_within_a_category(self) -> None:
        """Reuse times are exponential, so waiting makes a reuse less likely."""
        clock = FakeClock()
        policy = WorkloadAware(capacity=4, clock=clock)
        for block in range(3):
            policy.inserted(block, BlockFacts(0, prompt_blocks=4))
            clock.now_s += 10.0
        assert policy.evict(3) == [0, 1, 2]


def skewed_uses(rng: Random) -> list[int]:
    """Use few blocks often and many rarely, with runs over neighbours."""
    blocks: list[int] = []
    while len(blocks) < 300:
        start = min(int(rng.paretovariate(0.8)), 30)
        blocks += range(start, start + rng.randint(1, 4))
    return blocks


def decayed(times: Sequence[float], now_s: float) -> float:
    return sum(2.0 ** ((time - now_s) / 100.0) for time in times)
