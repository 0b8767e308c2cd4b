"""The NumPy Llama: its attention over pages against the textbook."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.model_rig import (
    BLOCK,
    CONFIG,
    NaiveLlama,
    Part,
    draw_ids,
    halved_tensors,
    make_batch,
    make_model,
    make_store,
    one_run,
    paired,
    run,
    scattered_table,
)

from warmroute.adapters.embedded.model import attention, reach, tile
from warmroute.adapters.embedded.model.arrays import F32, I32
from warmroute.adapters.embedded.model.kv_store import KVStore
from warmroute.adapters.embedded.model.llama import Llama
from warmroute.adapters.embedded.model.scratch import Scratch
from warmroute.adapters.embedded.model.weights import fuse_weights
from warmroute.policies.kv.pool import NULL_PAGE

MODEL = make_model()
NAIVE = NaiveLlama(halved_tensors())
CLOSE = {"rtol": 0, "atol": 2e-4}


def garbage_store(num_pages: int = 64) -> KVStore:
    """A store in which unwritten slots would spoil what reads them."""
    store = make_store(num_pages)
    for pair in store.pairs:
        pair[:] = np.nan
    return store


def test_logits_are_those_of_the_textbook() -> None:
    ids = draw_ids(37)
    found = run(MODEL, garbage_store(), Part(ids, one_run(37)), every_row=True)
    np.testing.assert_allclose(found, NAIVE.logits(ids), **CLOSE)


@pytest.mark.parametrize("length", [1, BLOCK, BLOCK + 1, 200])
def test_scattered_pages_give_what_one_run_gives(length: int) -> None:
    ids = draw_ids(length)
    whole = run(MODEL, garbage_store(), Part(ids, one_run(length)))
    apart = run(MODEL, garbage_store(), Part(ids, scattered_table(length)))
    np.testing.assert_allclose(apart, whole, **CLOSE)


def test_long_prompts_are_cut_into_tiles_without_a_seam(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tiles of one query and of many, and pieces of few keys and of all, agree."""
    ids = draw_ids(150)
    expected = NAIVE.logits(ids)
    for queries, product in ((1, 1), (7, 9000), (64, 1), (64, 1 << 24)):
        monkeypatch.setattr(attention, "MAX_QUERIES", queries)
        monkeypatch.setattr(tile, "UNPACKED", product)
        for table in (one_run(150), two_runs(150)):
            part = Part(ids, table)
            found = run(make_model(), garbage_store(), part, every_row=True)
            np.testing.assert_allclose(found, expected, **CLOSE)


def two_runs(length: int) -> I32:
    """Pages that lie in two stretches, the later ones in front."""
    pages = -(-length // BLOCK)
    return np.roll(one_run(length), -(pages // 3))


@pytest.mark.parametrize("middle", [0.0, 39.0, -39.0, 60.0, -60.0, 900.0, -900.0])
def test_attention_of_any_size_is_that_of_the_textbook(middle: float) -> None:
    """Sums of exponentials overflow or vanish, and a shift mends them."""
    random, count, keys = np.random.default_rng(6), 5, 20
    heads, kv_heads, width = CONFIG.num_heads, CONFIG.num_kv_heads, CONFIG.head_dim
    queries = random.standard_normal((count, heads, width)).astype(np.float32)
    pair = random.standard_normal((2, kv_heads, keys, width)).astype(np.float32)
    queries[..., 0] = middle * width**0.5
    pair[0, ..., 0] = 1
    out = np.empty_like(queries)
    received = np.zeros((kv_heads, keys), np.float32)
    subject = attention.Attention(CONFIG, Scratch())
    subject.attend(queries, [(pair[0], pair[1])], keys, out, received)

    wide = pair.astype(np.float64).repeat(CONFIG.group_size, axis=1)
    scores = np.einsum("qhd,hkd->hqk", queries, wide[0]) / width**0.5
    scores[:, ~np.tri(count, keys, keys - count, dtype=bool)] = -np.inf
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    expected = np.einsum("hqk,hkd->qhd", shares, wide[1])
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-3)
    by_group = shares.reshape(kv_heads, -1, keys).sum(axis=1)
    np.testing.assert_allclose(received, by_group, rtol=0, atol=1e-3)


@pytest.mark.parametrize("middle", [0.0, 39.0, -39.0, 41.0, 300.0, -300.0])
def test_the_softmax_is_the_same_with_and_without_a_shift(middle: float) -> None:
    """Neither large scores overflow nor small ones vanish, masked ones stay 0."""
    random = np.random.default_rng(5)
    scores = (middle + random.standard_normal((2, 3, 50))).astype(np.float32)
    scores[..., -4:] = -np.inf
    wide = scores.astype(np.float64)
    wide = np.exp(wide - wide.max(axis=-1, keepdims=True))
    totals = attention.exponentiate(scores)
    expected = wide / wide.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(scores / totals[..., None], expected, rtol=1e-4)


@pytest.mark.parametrize("count", [1, 2, 4, 5, 9])
def test_few_rows_and_many_give_the_same_products(count: int) -> None:
    ids = draw_ids(count)
    found = run(MODEL, garbage_store(), Part(ids, one_run(count)), every_row=True)
    np.testing.assert_allclose(found, NAIVE.logits(ids), **CLOSE)


@given(
    length=st.integers(2, 60),
    cuts=st.sets(st.integers(1, 59), max_size=6),
    seed=st.integers(0, 99),
)
@settings(max_examples=15)
def test_chunks_give_what_one_shot_gives(
    length: int, cuts: set[int], seed: int
) -> None:
    ids, table = draw_ids(length, seed), scattered_table(length, seed=seed)
    bounds = [0, *sorted(cut for cut in cuts if cut < length), length]
    store = garbage_store()
    for start, stop in pairwise(bounds):
        found = run(MODEL, store, Part(ids, table, start, stop))
    np.testing.assert_allclose(found[0], NAIVE.logits(ids)[-1], **CLOSE)


def test_a_prefix_hit_gives_the_logits_of_a_cold_run() -> None:
    """The second sequence computes only what is behind two shared pages."""
    first, second = draw_ids(20, 1), draw_ids(20, 2)
    shared = 2 * BLOCK
    second[:shared] = first[:shared]
    store = garbage_store()
    first_table = one_run(20)
    run(MODEL, store, Part(first, first_table))
    table = np.concatenate([first_table[:2], one_run(12, first=30)])
    warm = run(MODEL, store, Part(second, table, start=shared))
    cold = run(MODEL, garbage_store(), Part(second, one_run(20)))
    np.testing.assert_allclose(warm, cold, **CLOSE)


@given(st.lists(st.integers(1, 45), min_size=1, max_size=6), st.integers(0, 99))
@settings(max_examples=15)
def test_a_batch_gives_each_sequence_what_it_gets_alone(
    lengths: list[int], seed: int
) -> None:
    """Prefills, chunks and decodes of many lengths share one step."""
    random = np.random.default_rng(seed)
    store = garbage_store(128)
    free = random.permutation(np.arange(1, 128, dtype=np.int32))
    parts, expected = [], []
    for at, length in enumerate(lengths):
        ids = draw_ids(length, seed + at)
        pages = -(-length // BLOCK)
        table, free = free[:pages], free[pages:]
        start = int(random.choice([0, length - 1, length // 2]))
        if start:
            run(MODEL, store, Part(ids, table, 0, start))
        parts.append(Part(ids, table, start))
        expected.append(NAIVE.logits(ids)[-1])
    np.testing.assert_allclose(run(MODEL, store, *parts), expected, **CLOSE)


@pytest.mark.parametrize("runs", [1, 100])
def test_few_runs_and_gathered_pages_agree(
    runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "MAX_RUNS", runs)
    ids, table = draw_ids(41), scattered_table(41)
    store = garbage_store()
    run(MODEL, store, Part(ids, table, 0, 40))
    found = run(MODEL, store, Part(ids, table, 40))
    np.testing.assert_allclose(found[0], NAIVE.logits(ids)[-1], **CLOSE)


def received_by_key(ids: I32, first_query: int) -> F32:
    """What `scores` should hold: [layers, kv_heads, T], summed over a group."""
    NAIVE.logits(ids)
    shares = np.stack(NAIVE.attention)[:, :, first_query:]
    layers, _, _, length = shares.shape
    grouped = shares.reshape(layers, CONFIG.num_kv_heads, CONFIG.group_size, -1, length)
    return grouped.sum(axis=(2, 3)).astype(np.float32)


def test_scores_are_the_attention_each_key_received() -> None:
    ids, table = draw_ids(30), scattered_table(30)
    scores = np.zeros((CONFIG.num_layers, CONFIG.num_kv_heads, 40), np.float32)
    store = garbage_store()
    for start, stop in ((0, 13), (13, 29), (29, 30)):
        run(MODEL, store, Part(ids, table, start, stop, scores=scores))
    np.testing.assert_allclose(scores[..., :30], received_by_key(ids, 0), **CLOSE)
    assert not scores[..., 30:].any()


def test_scores_count_only_the_new_queries() -> None:
    ids, table = draw_ids(30), scattered_table(30)
    scores = np.zeros((CONFIG.num_layers, CONFIG.num_kv_heads, 30), np.float32)
    store = garbage_store()
    run(MODEL, store, Part(ids, table, 0, 25))
    run(MODEL, store, Part(ids, table, 25, scores=scores))
    np.testing.assert_allclose(scores, received_by_key(ids, 25), **CLOSE)


@pytest.mark.parametrize("start", [24, 20])
def test_null_pages_are_passed_over(start: int) -> None:
    """A table with holes equals one without the holes, at the old positions."""
    ids, table = draw_ids(25), scattered_table(25)
    store = garbage_store()
    run(MODEL, store, Part(ids, table, 0, start))
    holed = table.copy()
    holed[1:4] = NULL_PAGE
    found = run(MODEL, store, Part(ids, holed, start))
    batch = make_batch(Part(ids, table, start))
    batch.sequences[0].table = np.delete(table, slice(1, 4))
    batch.sequences[0].context = 25 - 3 * BLOCK
    np.testing.assert_allclose(found, MODEL.forward(batch, store), **CLOSE)
    full = run(MODEL, store, Part(ids, table, start))
    assert not np.allclose(found, full, **CLOSE)


class PrivateMemory:
    """Attention over arrays of its own, as a token budget has them."""

    def __init__(self, store: KVStore, slots: np.ndarray) -> None:
        self.keys = [keys[:, slots].copy() for keys in store.keys]
        self.values = [values[:, slots].copy() for values in store.values]
        self.inputs: list[F32] = []

    def attend(
        self, layer: int, inputs: F32, queries: F32, keys: F32, values: F32
    ) -> F32:
        self.inputs.append(inputs.copy())
        self.keys[layer] = np.append(self.keys[layer], keys[:, None], axis=1)
        self.values[layer] = np.append(self.values[layer], values[:, None], axis=1)
        grouped = queries.reshape(CONFIG.num_kv_heads, -1, CONFIG.head_dim)
        scores = grouped @ self.keys[layer].swapaxes(1, 2) / CONFIG.head_dim**0.5
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        return (shares @ self.values[layer]).reshape(queries.shape)


def test_a_sequence_may_attend_by_itself_among_others() -> None:
    """It is handed what it needs, and no page is written for it."""
    ids, other = draw_ids(20, 1), draw_ids(9, 2)
    store = garbage_store()
    table, other_table = one_run(20), one_run(9, first=20)
    run(MODEL, store, Part(ids, table, 0, 19))
    private = PrivateMemory(store, Part(ids, table, 0, 19).slots)
    before = [pair[:, Part(ids, table).slots].copy() for pair in store.pairs]
    part = Part(ids, table, 19, attention=private)
    found = run(MODEL, store, Part(other, other_table), part)
    expected = [NAIVE.logits(other)[-1], NAIVE.logits(ids)[-1]]
    np.testing.assert_allclose(found, expected, **CLOSE)
    after = [pair[:, Part(ids, table).slots] for pair in store.pairs]
    np.testing.assert_array_equal(before, after)
    assert [len(inputs) for inputs in private.inputs] == [CONFIG.hidden_size] * 2


def test_the_public_pieces_make_up_the_forward_pass() -> None:
    """Layer by layer with an attention of one's own gives the same logits."""
    ids = draw_ids(11)
    positions = np.arange(11)
    x = MODEL.embed(ids)
    for layer in range(CONFIG.num_layers):
        q, k, v = MODEL.qkv(layer, MODEL.attention_input(layer, x), positions)
        k, v = (np.repeat(each, CONFIG.group_size, axis=1) for each in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / CONFIG.head_dim**0.5
        scores[:, ~np.tri(11, dtype=bool)] = -np.inf
        shares = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", shares, v).reshape(11, -1)
        x = MODEL.after_attention(layer, x, out.astype(np.float32))
    np.testing.assert_allclose(MODEL.logits(x), NAIVE.logits(ids), **CLOSE)


def test_no_sampled_row_gives_no_logits() -> None:
    """A chunk in the middle of a prompt still stores its keys."""
    ids, store = draw_ids(8), garbage_store()
    batch = make_batch(Part(ids, one_run(8)))
    batch.sample_rows = np.empty(0, np.int64)
    assert MODEL.forward(batch, store).shape == (0, CONFIG.vocab_size)
    assert np.isfinite(store.keys[-1][:, BLOCK : BLOCK + 8]).all()


def test_huge_activations_stay_silent_and_finite() -> None:
    """exp(-gate) overflows for very negative gates; warnings are errors here."""
    tensors = halved_tensors()
    for name in tensors:
        if "gate_proj" in name:
            tensors[name] = tensors[name] * 1000
    model = Llama(CONFIG, fuse_weights(paired(tensors), CONFIG))
    assert np.isfinite(run(model, make_store(), Part(draw_ids(9), one_run(9)))).all()
