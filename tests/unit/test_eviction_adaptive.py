"""`adaptive` follows the policy that suits the load, and changes without a break."""

from collections.abc import Iterator
from random import Random

import pytest
from unit.eviction_rig import FakeClock, SingleBlockCache

from warmroute.policies.eviction.adaptive import Adaptive
from warmroute.policies.eviction.arc import Arc
from warmroute.policies.eviction.base import BlockEviction, BlockFacts
from warmroute.policies.eviction.contest import Contest
from warmroute.policies.eviction.lrfu import Lrfu
from warmroute.policies.eviction.lru import Lru
from warmroute.policies.eviction.s3fifo import S3Fifo
from warmroute.policies.eviction.shadow import Shadow

CAPACITY = 100


def recent(rng: Random) -> Iterator[int]:
    """A slowly moving window: what was used lately is used again."""
    for step in range(12_000):
        yield step // 12 + int(rng.expovariate(1 / 40))


def popular(rng: Random) -> Iterator[int]:
    """Popular blocks among blocks that are used once."""
    for step in range(12_000):
        yield (int(rng.paretovariate(0.9)) if step % 2 else 10_000 + step)


def count_hits(policy: type[BlockEviction], blocks: Iterator[int]) -> int:
    return sum(map(SingleBlockCache(policy, CAPACITY).use, blocks))


@pytest.mark.parametrize("load", [recent, popular])
def test_close_to_the_best_of_its_rules(load: type) -> None:
    """On loads that favour different rules it loses little to the best one."""
    best = max(count_hits(one, load(Random(1))) for one in (Lru, Lrfu, Arc, S3Fifo))
    assert count_hits(Adaptive, load(Random(1))) >= 0.97 * best


def test_the_ruler_changes_with_the_load() -> None:
    """After scans a rule that withstands them rules, and it is another one before."""
    cache = SingleBlockCache(Adaptive, CAPACITY)
    assert cache.policy.ruler == "lru"
    for block in popular(Random(1)):
        cache.use(block)
    assert cache.policy.ruler != "lru"


def test_a_change_of_ruler_loses_no_block() -> None:
    """Held, demoted and free blocks are the same to all rules, whoever rules."""
    policy = Adaptive(capacity=4, clock=FakeClock())
    for block in range(4):
        policy.inserted(block, BlockFacts(0))
    policy.held(1)
    policy.demoted(3)
    policy.check_integrity()
    policy._contest.leader = 3
    assert policy.ruler == "s3fifo"
    assert policy.evict(4) == [3, 0, 2]
    policy._contest.leader = 2
    assert policy.resident() == [1]


def test_unsampled_blocks_reach_no_shadow() -> None:
    """A large cache is judged by a sample whose size is bounded."""
    policy = Adaptive(capacity=1000, clock=FakeClock(), shadow_blocks=50)
    for block in range(1000):
        policy.inserted(block, BlockFacts(0))
    shadows = policy._contest._shadows
    assert all(30 <= len(one) <= 50 for one in shadows)


def test_what_is_removed_while_it_is_held_is_held_by_no_shadow() -> None:
    """Or the shadows would have room for nothing else, and tell nothing any more."""
    policy = Adaptive(capacity=4, clock=FakeClock())
    for block in range(4):
        policy.inserted(block, BlockFacts(0))
        policy.held(block)
        policy.removed(block)
    policy.inserted(4, BlockFacts(0))
    for shadow in policy._contest._shadows:
        assert shadow._rule.resident()[:4] == [1, 2, 3, 4]


class TestShadow:
    def test_a_block_behind_a_hole_is_no_hit(self) -> None:
        """What follows a missing block of its chain does not count."""
        shadow = Shadow(Lru(capacity=3, clock=FakeClock()))
        assert use_chain(shadow, [1, 2, 3]) == 0
        assert use_chain(shadow, [1, 2, 3]) == 3
        use_chain(shadow, [4])  # takes the place of 1
        assert use_chain(shadow, [1, 2, 3]) == 0

    def test_direction_does_not_matter(self) -> None:
        """A chain that is used tail first has the same hits, and the same holes."""
        shadow = Shadow(Lru(capacity=3, clock=FakeClock()))
        assert use_chain(shadow, [3, 2, 1]) == 0
        assert use_chain(shadow, [3, 2, 1]) == 3
        use_chain(shadow, [1, 2, 3])
        use_chain(shadow, [4])  # takes the place of 1
        assert use_chain(shadow, [3, 2, 1]) == 0

    def test_a_run_goes_on_where_another_ended(self) -> None:
        """A run behind a prefix that missed has no hits, though it is cached."""
        shadow = Shadow(Lru(capacity=5, clock=FakeClock()))
        use_chain(shadow, [1, 2, 3, 4])
        use_chain(shadow, [5])
        use_chain(shadow, [6])  # takes the place of 1
        assert use_chain(shadow, [1]) == 0
        assert use_chain(shadow, [3, 4], ancestor=1) == 0
        assert use_chain(shadow, [1]) == 1
        assert use_chain(shadow, [3, 4], ancestor=1) == 2

    def test_a_full_house_takes_nothing_in(self) -> None:
        """Where all blocks are held a new one finds no room, and nothing breaks."""
        shadow = Shadow(Lru(capacity=1, clock=FakeClock()))
        use_chain(shadow, [1])
        shadow.hold(1)
        use_chain(shadow, [2])
        assert len(shadow) == 1
        shadow.free(1)
        use_chain(shadow, [2])
        assert use_chain(shadow, [2]) == 1


class TestContest:
    def test_a_sample_hits_like_the_whole(self) -> None:
        """The hit ratio of shadows over a tenth is near that of a whole cache."""
        rng = Random(3)
        blocks = [int(rng.expovariate(1 / 4000)) for _ in range(60_000)]
        assert hit_ratio(blocks, 200, 0.1) == pytest.approx(
            hit_ratio(blocks, 2000, 1.0), abs=0.03
        )

    @pytest.mark.parametrize("is_tail_first", [False, True])
    @pytest.mark.parametrize("share", [0.25, 1.0])
    def test_a_chain_hits_whichever_end_comes_first(
        self, is_tail_first: bool, share: float
    ) -> None:
        """Where all fits, every sampled use of a chain but the first is a hit."""
        contest = Contest([Lru(capacity=400, clock=FakeClock())], share)
        contest._round_uses = 1_000_000  # one round without end
        for first in (0, 100, 200, 100, 0, 200):
            blocks = range(first, first + 90)
            for block in reversed(blocks) if is_tail_first else blocks:
                parent = block - 1 if block > first else None
                contest.use(block, BlockFacts(block - first, parent))
        contest.use(1000, BlockFacts(0))
        sampled = sum(map(contest._samples, [*range(90), *range(100, 190)]))
        sampled += sum(map(contest._samples, range(200, 290)))
        assert contest._shadows[0].hits == sampled

    def test_a_chain_is_followed_over_unsampled_blocks(self) -> None:
        """A later run knows the nearest sampled block where an earlier one ended."""
        for end in range(1, 40):
            contest = Contest([Lru(capacity=100, clock=FakeClock())], 0.2)
            for block in range(end + 1):
                contest.use(block, BlockFacts(block, block - 1 if block else None))
            contest.use(1000, BlockFacts(0))
            nearest = [one for one in range(end + 1) if contest._samples(one)]
            assert contest._nearest(end) == (nearest[-1] if nearest else None)


def use_chain(shadow: Shadow, blocks: list[int], ancestor: int | None = None) -> int:
    """Use *blocks*, each at the depth that its number says; return the hits."""
    before = shadow.hits
    for block in blocks:
        shadow.use(block, BlockFacts(block))
    shadow.settle(ancestor)
    return shadow.hits - before


def hit_ratio(blocks: list[int], capacity: int, share: float) -> float:
    contest = Contest([Lru(capacity=capacity, clock=FakeClock())], share)
    contest._round_uses = len(blocks) + 1  # one round without end
    for block in [*blocks, 1 << 40]:
        contest.use(block, BlockFacts(0))
    return contest._shadows[0].hits / sum(map(contest._samples, blocks))
