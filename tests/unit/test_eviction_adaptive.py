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


class TestContest:
    def test_a_sample_hits_like_the_whole(self) -> None:
        """Hit ratios of shadows over a tenth are near those of whole caches."""
        rng = Random(3)
        blocks = [int(rng.expovariate(1 / 4000)) for _ in range(60_000)]
        whole = Shadow(Lru(capacity=2000, clock=FakeClock()))
        for block in blocks:
            whole.use(block, BlockFacts(0), None)
        contest = Contest([Lru(capacity=200, clock=FakeClock())], 0.1)
        sampled = [one for one in blocks if contest._samples(one)]
        shadow = Shadow(Lru(capacity=200, clock=FakeClock()))
        for block in sampled:
            shadow.use(block, BlockFacts(0), None)
        assert whole.hits / len(blocks) == pytest.approx(
            shadow.hits / len(sampled), abs=0.03
        )

    def test_a_block_behind_a_hole_is_no_hit(self) -> None:
        """What follows a missing block of its chain does not count."""
        shadow = Shadow(Lru(capacity=3, clock=FakeClock()))
        for block in (1, 2, 3):
            shadow.use(block, BlockFacts(block - 1), block - 1 or None)
        assert shadow.hits == 0
        for block in (1, 2, 3):
            shadow.use(block, BlockFacts(block - 1), block - 1 or None)
        assert shadow.hits == 3
        shadow.use(4, BlockFacts(0), None)  # takes the place of 1
        for block in (1, 2, 3):
            shadow.use(block, BlockFacts(block - 1), block - 1 or None)
        assert shadow.hits == 3

    def test_chains_are_followed_over_unsampled_blocks(self) -> None:
        """The ancestor of a block is the nearest sampled one in front of it."""
        contest = Contest([Lru(capacity=100, clock=FakeClock())], 0.3)
        for block in range(1, 100):
            contest.enter(block, BlockFacts(block - 1, block - 1 or None))
        for block in range(1, 100):
            nearest = [one for one in range(1, block) if contest._samples(one)]
            assert contest._ancestors.get(block) == (nearest[-1] if nearest else None)
        for block in range(1, 100):
            contest.leave(block)
        assert not contest._ancestors
