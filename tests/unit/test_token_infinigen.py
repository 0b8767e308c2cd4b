"""InfiniGen's choice and speculation, without a model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmroute.policies.errors import PolicyError
from warmroute.policies.eviction.infinigen import InfiniGen
from warmroute.policies.eviction.speculation import (
    Speculation,
    choose_pairs,
    speculate,
)

KV_HEADS, GROUP, WIDTH, HIDDEN = 2, 3, 8, 16


def turns(positions: np.ndarray) -> np.ndarray:
    angles = np.outer(positions, 100.0 ** -np.linspace(0, 1, WIDTH // 2))
    return np.exp(1j * angles).astype(np.complex64)


def turned(heads: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Apply RoPE to [tokens, heads, d] by the textbook's rotation matrices."""
    out = np.empty_like(heads)
    for token, line in enumerate(turns(positions)):
        for pair, turn in enumerate(line):
            a, b = heads[token, :, 2 * pair], heads[token, :, 2 * pair + 1]
            out[token, :, 2 * pair] = a * turn.real - b * turn.imag
            out[token, :, 2 * pair + 1] = a * turn.imag + b * turn.real
    return out


def test_tokens_within_alpha_of_the_largest_are_fetched():
    scores = np.array([[[0.0, -2.0, -6.0, -1.0]]], np.float32)
    chosen = InfiniGen(alpha=3).choose(scores, cap=4)
    assert sorted(chosen[0].tolist()) == [0, 1, 3]


def test_the_cap_keeps_the_largest():
    scores = np.array([[[0.0, -2.0, -6.0, -1.0]]], np.float32)
    assert sorted(InfiniGen(np.inf).choose(scores, cap=2)[0].tolist()) == [0, 3]


def test_all_heads_fetch_the_mean_of_what_they_want():
    scores = np.array([[[0, -9, -9, -9, -9]], [[0, 0, 0, 0, -9]]], np.float32)
    chosen = InfiniGen(alpha=1).choose(scores, cap=5)
    assert chosen.shape == (2, 2)
    assert 0 in chosen[0]


def test_a_group_fetches_what_any_of_its_query_heads_wants():
    scores = np.array([[[100.0, 0, 0, 0], [-50, -90, -90, -50]]], np.float32)
    chosen = InfiniGen(alpha=1).choose(scores, cap=4)
    assert sorted(chosen[0].tolist()) == [0, 3]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    length=st.integers(1, 30),
    cap=st.integers(1, 40),
    alpha=st.floats(0, 5),
)
def test_no_token_left_behind_has_a_larger_margin(seed, length, cap, alpha):
    random = np.random.default_rng(seed)
    scores = random.normal(size=(KV_HEADS, GROUP, length)).astype(np.float32)
    chosen = InfiniGen(alpha).choose(scores, cap)
    assert 1 <= chosen.shape[1] <= min(cap, length)
    for head in range(KV_HEADS):
        margins = np.max([row - row.max() for row in scores[head]], axis=0)
        picked = set(chosen[head].tolist())
        assert len(picked) == chosen.shape[1]
        left = set(range(length)) - picked
        if left:
            assert max(margins[list(left)]) <= min(margins[list(picked)])


def test_whole_heads_and_no_shift_give_the_exact_scores():
    """With all pairs the guess from the same input is the true score."""
    random = np.random.default_rng(3)
    weights = random.normal(size=(KV_HEADS * GROUP, WIDTH, HIDDEN)).astype(np.float32)
    inputs = random.normal(size=(5, HIDDEN)).astype(np.float32)
    keys = random.normal(size=(5, KV_HEADS, WIDTH)).astype(np.float32)
    positions = np.arange(5)
    queries = turned(np.einsum("hdi,ti->thd", weights, inputs), positions)
    pairs = choose_pairs(queries, keys, share=1.0)
    speculation = Speculation(weights, pairs, np.zeros(HIDDEN, np.float32))
    guessed = speculation.queries(inputs, turns(positions))
    np.testing.assert_allclose(guessed, speculation.part(queries), rtol=1e-4, atol=1e-5)
    scores = speculate(guessed[4], speculation.keys(keys.swapaxes(0, 1)))
    grouped = queries[4].reshape(KV_HEADS, GROUP, WIDTH)
    true = np.einsum("kgd,tkd->kgt", grouped, keys) / WIDTH**0.5
    np.testing.assert_allclose(scores, true, rtol=1e-4, atol=1e-5)


def test_the_shift_is_added_to_the_input():
    random = np.random.default_rng(4)
    weights = random.normal(size=(KV_HEADS * GROUP, WIDTH, HIDDEN)).astype(np.float32)
    shift = random.normal(size=HIDDEN).astype(np.float32)
    inputs = random.normal(size=(2, HIDDEN)).astype(np.float32)
    pairs = np.array([[0, 2], [1, 3]])
    shifted = Speculation(weights, pairs, shift).queries(inputs, turns(np.arange(2)))
    plain = Speculation(weights, pairs, 0 * shift)
    np.testing.assert_allclose(
        shifted,
        plain.queries(inputs + shift, turns(np.arange(2))),
        rtol=1e-4,
        atol=1e-5,
    )


def test_pairs_with_large_queries_or_keys_are_chosen_for_each_kv_head():
    queries = np.full((4, KV_HEADS * GROUP, WIDTH), 0.1, np.float32)
    keys = np.full((4, KV_HEADS, WIDTH), 0.1, np.float32)
    queries[:, 0, 2] = 9  # pair 1 of a query head of group 0
    keys[:, 1, 7] = 9  # pair 3 of KV head 1
    assert choose_pairs(queries, keys, share=0.25).tolist() == [[1], [3]]


def test_a_part_is_smaller_than_the_whole():
    weights = np.ones((KV_HEADS * GROUP, WIDTH, HIDDEN), np.float32)
    pairs = np.zeros((KV_HEADS, 1), np.int64)
    speculation = Speculation(weights, pairs, np.zeros(HIDDEN, np.float32))
    assert speculation.nbytes == weights.nbytes // (WIDTH // 2)
    assert speculation.part_width == 2


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_a_senseless_share_is_refused(share):
    heads = np.ones((1, 2, WIDTH), np.float32)
    with pytest.raises(PolicyError, match="allowed: above 0, up to 1"):
        choose_pairs(heads, heads, share)


@pytest.mark.parametrize("alpha", [-1.0, float("nan")])
def test_a_senseless_alpha_is_refused(alpha):
    with pytest.raises(PolicyError, match="alpha"):
        InfiniGen(alpha)
