"""The host tier: ids of its own, what goes for room, and no id lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.policies.errors import PolicyError
from warmroute.policies.eviction.lru import Lru
from warmroute.policies.kv.host import HostTier
from warmroute.policies.kv.residents import Resident

steps = st.lists(
    st.tuples(st.sampled_from(["store", "touch", "drop"]), st.integers(0, 7)),
    max_size=60,
)


class TestHostTier:
    def test_ids_count_from_zero_and_are_used_again(self):
        """An id belongs to one block at a time; the lowest free one is taken."""
        tier = HostTier(3)
        assert [tier.store(block) for block in (10, 11, 12)] == [0, 1, 2]
        assert tier.drop(11)
        assert not tier.drop(11)

        assert tier.store(13) == 1
        assert [tier.find(block) for block in (10, 11, 13)] == [0, None, 1]
        assert repr(tier) == "<HostTier [Blocks: 3 of 3]>"

    def test_a_full_tier_gives_the_place_of_the_block_used_last_to_the_new_one(self):
        """The bytes of the victim are overwritten: its id is the one returned."""
        tier = HostTier(2)
        tier.store(10)
        tier.store(11)
        tier.touch(10)

        assert tier.store(12) == 1
        assert (10 in tier, 11 in tier, len(tier)) == (True, False, 2)

    def test_storing_again_is_a_use(self):
        """A block that comes twice keeps its place, and becomes the youngest."""
        tier = HostTier(2)
        assert [tier.store(block) for block in (10, 11, 10)] == [0, 1, 0]
        tier.store(12)

        assert 11 not in tier

    def test_snapshot_lists_parents_first(self):
        """Every block is there with its place."""
        tier = HostTier(3)
        tier.store(11, parent_hash=10, depth=1)
        tier.store(10)

        assert tier.snapshot() == [
            Resident(block_hash=10, parent_hash=None, page=1, refs=0, depth=0),
            Resident(block_hash=11, parent_hash=10, page=0, refs=0, depth=1),
        ]

    def test_a_tier_without_room_is_refused(self):
        """No tier is said by leaving it out."""
        with pytest.raises(PolicyError, match=r"0 blocks \(allowed: 1 or more; leave"):
            HostTier(0)

    def test_a_policy_that_gives_nothing_up_is_named(self):
        """A broken rule fails the store, and what is there stays."""

        class Miser(Lru):
            name = "miser"

            def evict(self, count: int) -> list[int]:
                return []

        tier = HostTier(1, Miser(capacity=1, clock=lambda: 0.0))
        tier.store(10)
        with pytest.raises(PolicyError, match=r"miser: gave up \[\] of 1 blocks"):
            tier.store(11)
        tier.check_integrity()
        assert tier.find(10) == 0

    @given(steps=steps)
    def test_agrees_with_a_list(self, steps: list[tuple[str, int]]):
        """Residents and victims are those of a list in order of use."""
        tier = HostTier(3)
        order: list[int] = []
        places: dict[int, int] = {}
        for verb, block in steps:
            if verb == "store":
                if block not in order and len(order) == 3:
                    del places[order.pop(0)]
                host_id = tier.store(block)
                assert places.setdefault(block, host_id) == host_id
            elif verb == "drop":
                assert tier.drop(block) == (block in order)
                places.pop(block, None)
            elif block in order:
                tier.touch(block)
            if block in order:
                order.remove(block)
            if verb != "drop" and block in places:
                order.append(block)

            tier.check_integrity()
            assert {row.block_hash: row.page for row in tier.snapshot()} == places
            assert len(set(places.values())) == len(places)
