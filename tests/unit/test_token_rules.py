"""Token eviction rules against a naive model, one token and row at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmroute.policies.errors import PolicyError
from warmroute.policies.eviction.full import Full
from warmroute.policies.eviction.h2o import H2O
from warmroute.policies.eviction.host_pool import HostPool
from warmroute.policies.eviction.kept_tokens import KeptTokens
from warmroute.policies.eviction.sinks import Sinks
from warmroute.policies.eviction.token_base import TokenRule
from warmroute.policies.eviction.window import Window


def run(rule: TokenRule, capacity: int, attention: np.ndarray) -> KeptTokens:
    """Feed tokens whose query q gives *attention* [rows, q, key] to each key."""
    rows, length, _ = attention.shape
    kept = KeptTokens(rule, rows, capacity)
    for position in range(length):
        kept.admit(position)
        seen = kept.positions[:, : kept.count]
        kept.observe(np.take_along_axis(attention[:, position], seen, axis=1))
        kept.check_integrity()
    return kept


def positions(kept: KeptTokens) -> list[list[int]]:
    return np.sort(kept.positions[:, : kept.count], axis=1).tolist()


def naive_h2o(
    attention: np.ndarray, capacity: int, sinks: int, recent: int
) -> list[int]:
    """Algorithm 1 for one row, with sets and dictionaries."""
    scores: dict[int, float] = {}
    for position, received in enumerate(attention):
        if len(scores) == capacity:
            evictable = [p for p in scores if p >= sinks and p <= position - recent]
            del scores[min(evictable, key=lambda p: scores[p])]
        scores[position] = 0.0
        for kept in scores:
            scores[kept] += received[kept]
    return sorted(scores)


def test_window_keeps_the_newest_tokens():
    kept = run(Window(), 3, np.zeros((2, 8, 8), np.float32))
    assert positions(kept) == [[5, 6, 7], [5, 6, 7]]


def test_sinks_keep_the_first_and_the_newest_tokens():
    kept = run(Sinks(5, sinks=2), 5, np.zeros((1, 9, 9), np.float32))
    assert positions(kept) == [[0, 1, 6, 7, 8]]


def test_h2o_keeps_a_heavy_hitter_in_the_row_that_has_it():
    attention = np.full((2, 10, 10), 0.1, np.float32)
    attention[0, :, 2] = 5
    attention[1, :, 3] = 5
    kept = run(H2O(4), 4, attention)
    assert 2 in positions(kept)[0]
    assert 2 not in positions(kept)[1]
    assert 3 in positions(kept)[1]
    assert all(row[-2:] == [8, 9] for row in positions(kept))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    capacity=st.integers(1, 9),
    sinks=st.integers(0, 4),
    recent=st.none() | st.integers(0, 5),
    length=st.integers(1, 24),
)
def test_h2o_equals_algorithm_1_of_the_paper(seed, capacity, sinks, recent, length):
    newest = max(1, capacity // 2) if recent is None else recent
    if sinks + max(1, newest) > capacity:
        with pytest.raises(PolicyError, match="protects"):
            H2O(capacity, sinks, recent)
        return
    attention = np.random.default_rng(seed).random((3, length, length), np.float32)
    kept = run(H2O(capacity, sinks, recent), capacity, attention)
    wanted = [naive_h2o(row, capacity, sinks, max(1, newest)) for row in attention]
    assert positions(kept) == wanted


@pytest.mark.parametrize("length", [4, 11])
def test_start_keeps_what_is_worth_most_in_ascending_slots(length):
    scores = np.random.default_rng(1).random((2, length), np.float32)
    kept = KeptTokens(H2O(6, sinks=1, recent=3), 2, 6)
    chosen = kept.start(scores)
    kept.check_integrity()
    for row in range(2):
        middle = sorted(range(1, length - 2), key=lambda p: -scores[row, p])[:3]
        wanted = sorted({0, length - 2, length - 1, *middle})
        assert chosen[row].tolist() == (wanted if length > 6 else list(range(length)))
        np.testing.assert_array_equal(
            kept.scores[row, : kept.count], scores[row, chosen[row]]
        )


def test_a_new_token_does_not_inherit_the_attention_of_its_victim():
    kept = KeptTokens(H2O(2, recent=1), 1, 2)
    kept.start(np.array([[3.0, 9.0]], np.float32))
    slots = kept.admit(2)
    assert slots.tolist() == [0]
    assert kept.scores.tolist() == [[0.0, 9.0]]


def test_full_refuses_to_evict():
    kept = KeptTokens(Full(), 1, 2)
    kept.admit(0)
    kept.admit(1)
    with pytest.raises(PolicyError, match="no room for token 2"):
        kept.admit(2)


@pytest.mark.parametrize("make", [lambda: Sinks(4, 4), lambda: Sinks(4, -1)])
def test_sinks_must_leave_room_for_the_new_token(make):
    with pytest.raises(PolicyError, match="protect fewer or raise the budget"):
        make()


@pytest.mark.parametrize("shape", [(0, 4), (2, 0)])
def test_no_rows_or_no_slots_are_refused(shape):
    with pytest.raises(PolicyError, match="raise the token budget"):
        KeptTokens(Window(), *shape)


def test_extend_gives_room_and_keeps_what_is_there():
    kept = KeptTokens(Window(), 1, 2)
    kept.admit(0)
    kept.admit(1)
    kept.extend(3)
    assert kept.admit(2).tolist() == [2]
    assert positions(kept) == [[0, 1, 2]]


class TestHostPool:
    def fill(self, victims: str, count: int = 8) -> HostPool:
        pool = HostPool(victims, 1, count)
        for position in range(count):
            pool.admit(position)
        return pool

    def test_fifo_drops_the_oldest_however_often_it_was_fetched(self):
        pool = self.fill("fifo")
        pool.fetched(np.array([[0]]))
        pool.admit(8)
        assert positions(pool) == [[1, 2, 3, 4, 5, 6, 7, 8]]

    def test_lru_drops_what_was_not_fetched_for_longest(self):
        pool = self.fill("lru")
        pool.fetched(np.array([[1, 2, 3, 4]]))
        pool.fetched(np.array([[0, 2, 3]]))
        pool.admit(8)
        assert 1 not in positions(pool)[0]

    def test_counter_drops_what_was_fetched_least(self):
        pool = self.fill("counter")
        for slots in ([0, 1, 2, 3, 4], [0, 1, 3, 4], [3, 4]):
            pool.fetched(np.array([slots]))
        pool.admit(8)
        assert 2 not in positions(pool)[0]

    @pytest.mark.parametrize("victims", ["lru", "counter"])
    def test_the_newest_half_is_safe(self, victims):
        pool = self.fill(victims)
        pool.fetched(np.array([[0, 1, 2, 3]]))
        pool.admit(8)
        assert set(range(5, 9)) < set(positions(pool)[0])

    def test_counters_are_halved_when_one_saturates(self):
        pool = self.fill("counter")
        pool.fetched(np.array([[1]]))
        for _ in range(255):
            pool.fetched(np.array([[0]]))
        assert pool.scores[0, :2].tolist() == [127.5, 0.5]

    def test_the_rows_drop_tokens_of_their_own(self):
        pool = HostPool("counter", 2, 4)
        for position in range(4):
            pool.admit(position)
        pool.fetched(np.array([[0], [1]]))
        pool.admit(4)
        assert positions(pool) == [[0, 2, 3, 4], [1, 2, 3, 4]]

    def test_an_unknown_choice_is_explained(self):
        with pytest.raises(PolicyError, match="did you mean 'counter'"):
            HostPool("countr", 1, 4)
