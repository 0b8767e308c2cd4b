"""Retention: what stays, for how long, how much of it, and how it ends by itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.fake_clock import FakeClock

from warmroute.policies.errors import PolicyError
from warmroute.policies.kv.pool import BlockPool
from warmroute.policies.kv.retention import Retention

CHAINS = [[10, 11, 12], [20, 21], [30, 31, 32]]


def cached(num_pages: int, *chains: list[int]) -> BlockPool:
    pool = BlockPool(num_pages, 16)
    for chain in chains:
        pages = pool.allocate(len(chain))
        for depth, block in enumerate(chain):
            pool.register(
                pages[depth], block, chain[depth - 1] if depth else None, depth
            )
        pool.release(pages)
    return pool


def surviving(pool: BlockPool, chain: list[int]) -> int:
    """Fill the whole pool once, and count what is left of *chain*."""
    pool.release(pool.allocate(pool.num_free))
    return len(pool.lookup(chain))


class TestRetention:
    def test_a_retained_prefix_survives_where_another_goes(self):
        """Under pressure the one is there afterwards, and the other is not."""
        pool = cached(9, *CHAINS[:2])
        retention = Retention(pool, clock=FakeClock())

        assert retention.retain(CHAINS[0], 60.0) == 3
        assert (surviving(pool, CHAINS[0]), surviving(pool, CHAINS[1])) == (3, 0)
        assert repr(retention) == "<Retention [Blocks: 3 of 4]>"

    def test_it_ends_by_itself(self):
        """After its time a prefix is evicted like any other, though nobody asked."""
        pool, clock = cached(9, *CHAINS[:2]), FakeClock()
        retention = Retention(pool, clock=clock)
        retention.retain(CHAINS[0], 60.0)
        clock.now += 60.0

        assert len(pool.allocate(8)) == 8
        assert pool.num_cached == 0
        assert retention.num_blocks == 0

    def test_the_tail_of_what_expires_together_goes_first(self):
        """An expired chain is evicted from its end."""
        pool, clock = cached(9, CHAINS[0]), FakeClock()
        retention = Retention(pool, clock=clock)
        retention.retain(CHAINS[0], 60.0)

        assert retention.expire(159.9) == 0
        assert retention.expire(160.0) == 3
        assert pool.policy.resident() == [12, 11, 10]

    def test_the_cap_ends_the_slices(self):
        pool = cached(9, CHAINS[0], CHAINS[1])
        retention = Retention(pool, clock=FakeClock())
        retention.retain(CHAINS[1], 60.0)
        assert [*retention.retain_in_slices(CHAINS[0], 60.0, 2)] == [2, 0]
        assert [*retention.retain_in_slices([99, 98, 97], 60.0, 2)] == [0]

    def test_the_cap_cuts_the_tail(self):
        """No more than its share of the pool is retained, and of that the head."""
        pool = cached(9, *CHAINS[:2])
        retention = Retention(pool, 0.5, clock=FakeClock())

        assert retention.retain(CHAINS[0], 60.0) == 3
        assert retention.retain(CHAINS[1], 60.0) == 1
        assert (20 in retention, 21 in retention) == (True, False)
        retention.check_integrity()

    def test_only_the_leading_resident_run_is_retained(self):
        """What lies behind a hole cannot be hit."""
        pool = cached(9, CHAINS[0])

        retention = Retention(pool, clock=FakeClock())
        assert retention.retain([10, 99, 12], 60.0) == 1

    def test_the_later_deadline_counts(self):
        """Retaining again may prolong, and never shortens."""
        pool, clock = cached(9, CHAINS[0]), FakeClock()
        retention = Retention(pool, clock=clock)
        for ttl_s in (10.0, 60.0, 20.0):
            retention.retain(CHAINS[0], ttl_s)
        clock.now += 59.0
        assert retention.num_blocks == 3
        clock.now += 1.0
        assert retention.num_blocks == 0

    def test_releasing_ends_it_early(self):
        """Released blocks are ordinary ones, whatever their deadline was."""
        pool = cached(9, CHAINS[0])
        retention = Retention(pool, clock=FakeClock())
        retention.retain(CHAINS[0], 60.0)

        assert retention.release([11, 12, 99]) == 2
        assert (pool.num_held, surviving(pool, CHAINS[0])) == (1, 1)

    @pytest.mark.parametrize("ttl_s", [0.0, -1.0, float("nan")])
    def test_a_time_that_is_none_is_refused(self, ttl_s: float):
        """Nothing is retained for no time."""
        retention = Retention(cached(9, CHAINS[0]), clock=FakeClock())
        with pytest.raises(PolicyError, match="allowed: more than 0"):
            retention.retain(CHAINS[0], ttl_s)

    @pytest.mark.parametrize("cap_share", [-0.1, 1.1])
    def test_a_share_that_is_none_is_refused(self, cap_share: float):
        """A share is between nothing and all."""
        with pytest.raises(PolicyError, match="allowed: 0 to 1"):
            Retention(cached(9), cap_share, clock=FakeClock())

    @given(
        steps=st.lists(
            st.tuples(
                st.sampled_from(["retain", "release", "pass"]),
                st.integers(0, 2),
                st.integers(1, 5),
            ),
            max_size=40,
        )
    )
    def test_agrees_with_a_dict_of_deadlines(self, steps: list[tuple[str, int, int]]):
        """At any time exactly those blocks are held whose time has not come."""
        pool, clock = cached(11, *CHAINS), FakeClock()
        retention = Retention(pool, 0.4, clock=clock)
        model: dict[int, float] = {}
        for verb, number, amount in steps:
            chain = CHAINS[number]
            if verb == "pass":
                clock.now += amount
            model = {key: due for key, due in model.items() if due > clock.now}
            if verb == "retain":
                retention.retain(chain, float(amount))
                for block in chain:
                    if block not in model and len(model) == 4:
                        break
                    model[block] = max(model.get(block, 0.0), clock.now + amount)
            elif verb == "release":
                expected = len(model.keys() & set(chain[:amount]))
                assert retention.release(chain[:amount]) == expected
                model = {key: model[key] for key in model if key not in chain[:amount]}

            assert retention.num_blocks == len(model)
            held = {row.block_hash for row in pool.snapshot() if row.refs}
            assert held == model.keys()
            retention.check_integrity()
            pool.check_integrity()
