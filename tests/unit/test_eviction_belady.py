"""Belady's bound is the best that any eviction can reach, and is reached."""

from functools import cache
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.eviction_rig import POLICIES, SingleBlockCache

from warmroute.policies.errors import PolicyError
from warmroute.policies.eviction.belady import most_hits


def best_by_search(blocks: tuple[int, ...], capacity: int) -> int:
    """Try every set of blocks to keep after every use."""

    @cache
    def best(index: int, kept: frozenset[int]) -> int:
        if index == len(blocks):
            return 0
        block = blocks[index]
        have = sorted(kept | {block})
        choices = [
            frozenset(choice)
            for size in range(min(capacity, len(have)) + 1)
            for choice in combinations(have, size)
        ]
        return (block in kept) + max(best(index + 1, one) for one in choices)

    return best(0, frozenset())


@settings(deadline=None, max_examples=60)
@given(
    blocks=st.lists(st.integers(0, 4), max_size=9).map(tuple),
    capacity=st.integers(0, 3),
)
def test_equals_the_best_of_all_choices(blocks: tuple[int, ...], capacity: int) -> None:
    """No choice of what to keep has more hits."""
    requests = [[block] for block in blocks]
    assert most_hits(requests, capacity) == best_by_search(blocks, capacity)


@given(blocks=st.lists(st.integers(0, 15), max_size=120), capacity=st.integers(1, 10))
def test_no_policy_exceeds_it(blocks: list[int], capacity: int) -> None:
    """Every policy has at most as many hits."""
    bound = most_hits([[block] for block in blocks], capacity)
    for policy in POLICIES:
        one = SingleBlockCache(policy, capacity)
        assert sum(map(one.use, blocks)) <= bound


def test_part_of_a_chain_is_worth_keeping() -> None:
    """Where a chain does not fit, as much of it hits as there is room."""
    assert most_hits([[1, 2, 3, 4], [1, 2, 3, 4]], 2) == 2


def test_capacity_must_not_be_negative() -> None:
    """A negative capacity is refused."""
    with pytest.raises(PolicyError, match="a capacity of -1 blocks"):
        most_hits([[1]], -1)
