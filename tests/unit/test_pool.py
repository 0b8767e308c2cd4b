"""The block pool: what is handed out, what is kept, what goes, and what is refused."""

import pytest

from warmroute.policies.errors import PolicyError
from warmroute.policies.eviction.lru import Lru
from warmroute.policies.kv.pool import BlockPool, PageMisuse, PoolExhausted, Resident


class Listener:
    """Write down what a pool announces."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def stored(self, block_hash: int, parent_hash: int | None, page: int) -> None:
        self.heard.append(("stored", block_hash, parent_hash, page))

    def removed(self, block_hash: int, page: int) -> None:
        self.heard.append(("removed", block_hash, page))

    def cleared(self) -> None:
        self.heard.append(("cleared",))


def cache(pool: BlockPool, hashes: list[int]) -> list[int]:
    """Leave a chain of *hashes* cached and unreferenced."""
    pages = pool.allocate(len(hashes))
    register(pool, pages, hashes)
    pool.release(pages)
    return pages


def register(pool: BlockPool, pages: list[int], hashes: list[int]) -> None:
    for depth, (page, block) in enumerate(zip(pages, hashes, strict=True)):
        assert pool.register(page, block, hashes[depth - 1] if depth else None, depth)


class TestAllocation:
    def test_blank_pages_come_in_ascending_runs(self):
        """Pages are consecutive where they can be, whatever order they came back in."""
        pool = BlockPool(9, 16)
        first, second = pool.allocate(3), pool.allocate(3)
        pool.release(second)
        pool.release(first)

        assert first == [1, 2, 3]
        assert pool.allocate(7) == [1, 2, 3, 4, 5, 6, 7]

    def test_blank_pages_go_before_cached_ones(self):
        """Nothing is evicted while a page without content is left."""
        pool = BlockPool(6, 16)
        cache(pool, [10, 11])
        pool.allocate(3)

        assert pool.lookup([10, 11]) == [1, 2]
        assert repr(pool) == (
            "<BlockPool [Pages: 5 of 16 tokens, 3 referenced, 2 registered, 0 blank]>"
        )

    def test_the_tail_of_a_chain_goes_first(self):
        """Of a released chain the last block is evicted first: the head is of use."""
        pool = BlockPool(5, 16)
        cache(pool, [10, 11, 12, 13])
        pool.allocate(2)

        assert pool.lookup([10, 11, 12, 13]) == [1, 2]

    def test_the_chain_used_last_stays_longest(self):
        """A hit makes a chain younger than one that came after it."""
        pool = BlockPool(5, 16)
        old = cache(pool, [10, 11])
        cache(pool, [20, 21])
        pool.share(old)
        pool.release(old)
        pool.allocate(2)

        assert (len(pool.lookup([10, 11])), len(pool.lookup([20, 21]))) == (2, 0)

    def test_exhaustion_gives_nothing_and_evicts_nothing(self):
        """An allocation that cannot be met whole changes nothing."""
        pool = BlockPool(5, 16)
        pool.allocate(2)
        cache(pool, [10])
        with pytest.raises(
            PoolExhausted, match="3 pages asked, 2 free; wait"
        ) as failed:
            pool.allocate(3)

        assert (failed.value.asked, failed.value.free) == (3, 2)
        assert pool.lookup([10]) == [3]
        pool.check_integrity()

    def test_usage_counts_referenced_pages_only(self):
        """The null page is no part of the pool, and cached pages are free."""
        pool = BlockPool(5, 16)
        cache(pool, [10, 11])
        pool.allocate(1)

        assert (pool.usage, pool.num_free, pool.num_cached) == (0.25, 3, 2)

    def test_reclaimers_are_asked_before_an_allocation_fails(self):
        """Whoever sits on pages is told how many are missing, and only then."""
        pool = BlockPool(5, 16)
        hoard, asked = pool.allocate(3), []

        def reclaim(missing: int) -> None:
            asked.append(missing)
            pool.release([hoard.pop() for _ in range(missing)])

        pool.add_reclaimer(reclaim)
        pool.allocate(1)
        pool.allocate(2)

        assert asked == [2]

    @pytest.mark.parametrize(("num_pages", "block_size"), [(1, 16), (4, 0)])
    def test_a_pool_without_room_is_refused(self, num_pages: int, block_size: int):
        """A pool needs a page beside the null page, and tokens in a page."""
        with pytest.raises(PolicyError, match=r"allowed: 2 or more"):
            BlockPool(num_pages, block_size)


class TestContent:
    def test_lookup_ends_at_the_first_hole(self):
        """What lies behind a missing block is of no use."""
        pool = BlockPool(6, 16)
        cache(pool, [10, 11, 12])

        assert pool.lookup([10, 99, 12]) == [1]

    def test_a_second_page_of_the_same_content_stays_unregistered(self):
        """The page in use that came first stands for the hash; the copy turns blank."""
        pool = BlockPool(6, 16)
        cache(pool, [10])
        pool.share([1])
        twin = pool.allocate(1)
        assert not pool.register(twin[0], 10, None, 0)
        pool.release(twin)

        assert pool.lookup([10]) == [1]
        assert pool.num_cached == 1
        pool.check_integrity()

    def test_a_page_in_use_takes_the_place_of_one_that_nobody_uses(self):
        """What a request computes stays cached while it runs, whatever is evicted."""
        pool = BlockPool(4, 16)
        cache(pool, [10])
        twin = pool.allocate(1)
        assert pool.register(twin[0], 10, None, 0)
        pool.allocate(2)

        assert pool.lookup([10]) == twin
        assert pool.num_cached == 1
        pool.check_integrity()

    def test_registering_again_changes_nothing(self):
        """A page may be registered twice as what it is."""
        listener = Listener()
        pool = BlockPool(6, 16, observer=listener)
        (page,) = pool.allocate(1)
        assert pool.register(page, 10, None, 0)
        assert pool.register(page, 10, None, 0)

        assert listener.heard == [("stored", 10, None, 1)]

    def test_what_may_be_read_by_others_is_shared(self):
        """A page is written in place only by its one user, and unregistered."""
        pool = BlockPool(6, 16)
        own, registered, forked = pool.allocate(3)
        pool.register(registered, 10, None, 0)
        pool.share([forked])

        assert [pool.is_shared(page) for page in (own, registered, forked)] == [
            False,
            True,
            True,
        ]

    def test_snapshot_lists_parents_first(self):
        """Every registered block is there, with its place in the chain."""
        pool = BlockPool(6, 16)
        cache(pool, [10, 11])
        pool.share(pool.lookup([10]))

        assert pool.snapshot() == [
            Resident(block_hash=10, parent_hash=None, page=1, refs=1, depth=0),
            Resident(block_hash=11, parent_hash=10, page=2, refs=0, depth=1),
        ]

    def test_every_change_is_announced(self):
        """Stored, removed by name, removed for room, cleared: a listener hears each."""
        listener = Listener()
        pool = BlockPool(3, 16, observer=listener)
        cache(pool, [10, 11])
        pool.evict([11])
        pool.release(pool.allocate(2))
        cache(pool, [20, 21])
        pool.flush()

        assert listener.heard == [
            ("stored", 10, None, 1),
            ("stored", 11, 10, 2),
            ("removed", 11, 2),
            ("removed", 10, 1),
            ("stored", 20, None, 1),
            ("stored", 21, 20, 2),
            ("cleared",),
        ]


class TestSteering:
    def test_named_eviction_cuts_from_the_end_only(self):
        """A block stays while a cached one needs it, and while somebody uses it."""
        pool = BlockPool(9, 16)
        cache(pool, [10, 11, 12])
        used = pool.allocate(2)
        register(pool, used, [20, 21])

        assert pool.evict([10, 12, 20, 21, 99]) == [12]
        assert pool.evict([10, 11]) == [11, 10]

    def test_demoted_blocks_go_next(self):
        """What is demoted goes before what is older, its tail first."""
        pool = BlockPool(5, 16)
        cache(pool, [10, 11])
        cache(pool, [20, 21])

        assert pool.demote([20, 21, 99]) == 2
        pool.allocate(1)
        assert (len(pool.lookup([10, 11])), len(pool.lookup([20, 21]))) == (2, 1)

    def test_a_hit_undoes_a_demotion_and_a_fork_does_not(self):
        """Only a request that found a block by its content speaks for it."""
        pool = BlockPool(7, 16)
        cache(pool, [10])
        chains = [cache(pool, [block]) for block in (20, 30)]
        pool.demote([20, 30])
        pool.share(chains[0])
        pool.share(chains[1], is_hit=False)
        for chain in chains:
            pool.release(chain)

        assert pool.policy.resident() == [30, 10, 20]

    def test_held_blocks_survive_what_evicts_others(self):
        """Neither allocation nor name nor flush takes a held block; unholding does."""
        pool = BlockPool(5, 16)
        cache(pool, [10, 11])
        cache(pool, [20, 21])
        assert pool.hold([10, 11, 99]) == 2
        assert pool.hold([10]) == 0

        assert (pool.num_free, pool.num_held) == (2, 2)
        pool.release(pool.allocate(2))
        assert pool.evict([11]) == []
        assert not pool.flush()
        assert pool.lookup([10, 11]) == [1, 2]
        assert pool.unhold([10, 11, 99]) == 2
        assert pool.policy.resident() == [11, 10]
        assert pool.flush()

    def test_flush_leaves_what_is_used(self):
        """With a request running the rest goes all the same, block by block."""
        listener = Listener()
        pool = BlockPool(6, 16, observer=listener)
        cache(pool, [10, 11])
        pool.share(pool.lookup([10]))
        listener.heard.clear()

        assert not pool.flush()
        assert listener.heard == [("removed", 11, 2)]
        assert pool.num_cached == 1

    def test_a_new_policy_takes_over_the_residents(self):
        """Order, holds and references carry over; facts are those of registration."""
        pool = BlockPool(6, 16)
        cache(pool, [10, 11])
        pool.share(pool.lookup([10]))
        fresh = Lru(capacity=5, clock=lambda: 0.0)
        pool.set_policy(fresh)

        assert pool.policy is fresh
        assert fresh.resident() == [11, 10]
        pool.check_integrity()
        assert len(pool.allocate(4)) == 4
        assert pool.num_cached == 1

    def test_a_policy_in_use_is_refused(self):
        """Two pools cannot share a policy, and the old one stays in force."""
        pool, other = BlockPool(6, 16), BlockPool(6, 16)
        cache(other, [10])
        before = pool.policy
        with pytest.raises(PolicyError, match="lru: 1 blocks are known to it already"):
            pool.set_policy(other.policy)
        assert pool.policy is before


class Stubborn(Lru):
    """A broken rule that gives up less than it could."""

    name = "stubborn"
    __slots__ = ()

    def evict(self, count: int) -> list[int]:
        return super().evict(count - 1)


class Treacherous(Lru):
    """A broken rule that gives up what is in use."""

    name = "treacherous"
    __slots__ = ()

    def evict(self, count: int) -> list[int]:
        return [10]


class TestMisuse:
    def test_a_broken_policy_is_named_and_loses_no_page(self):
        """A rule that gives up too little fails the allocation, which leaks nothing."""
        pool = BlockPool(4, 16, Stubborn(capacity=3, clock=lambda: 0.0))
        cache(pool, [10, 11])
        with pytest.raises(PolicyError, match="eviction stubborn: 1 of 2 victims are"):
            pool.allocate(3)
        pool.check_integrity()

    def test_a_victim_in_use_is_never_given_away(self):
        """A rule that names a referenced block is refused, and the block stays."""
        pool = BlockPool(4, 16, Treacherous(capacity=3, clock=lambda: 0.0))
        used = pool.allocate(1)
        register(pool, used, [10])
        cache(pool, [20, 21])
        with pytest.raises(PolicyError, match="treacherous: 0xa was given up"):
            pool.allocate(1)
        assert pool.lookup([10]) == used

    def test_pages_are_released_as_often_as_taken(self):
        """One release too many is refused whole, within one call as well."""
        pool = BlockPool(6, 16)
        pages = pool.allocate(2)
        with pytest.raises(PageMisuse, match="page 1 is released 2 times at 1 ref"):
            pool.release([pages[1], pages[0], pages[0]])

        assert pool.num_referenced == 2

    def test_blank_pages_cannot_be_shared(self):
        """A page found earlier may be blank by now; the message says what to do."""
        pool = BlockPool(6, 16)
        found = cache(pool, [10])
        pool.flush()
        with pytest.raises(
            PageMisuse, match=r"page 1 is shared but blank .* look it up"
        ):
            pool.share(found)

    def test_only_referenced_pages_are_registered(self):
        """Content is registered by who wrote it, and a page has one content."""
        pool = BlockPool(6, 16)
        with pytest.raises(PageMisuse, match="registered as 0xa, it is not referenced"):
            pool.register(1, 10, None, 0)
        (page,) = pool.allocate(1)
        pool.register(page, 10, None, 0)
        with pytest.raises(PageMisuse, match="registered as 0xb, it is 0xa already"):
            pool.register(page, 11, None, 0)

    def test_the_null_page_is_passed_over(self):
        """Evicted middles of a table are shared and released without effect."""
        pool = BlockPool(6, 16)
        pool.share([0, 0])
        pool.release([0, 0])

        assert pool.num_referenced == 0
        pool.check_integrity()
