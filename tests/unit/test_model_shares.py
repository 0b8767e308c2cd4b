"""A step cut into shares, and the threads that compute them."""

import threading
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import ThreadpoolController

from tests.unit.model_rig import (
    BLOCK,
    CONFIG,
    NaiveLlama,
    Part,
    draw_ids,
    halved_tensors,
    make_batch,
    make_store,
    one_run,
    paired,
    run,
    scattered_table,
)
from warmroute.adapters.embedded.model.batch import Batch
from warmroute.adapters.embedded.model.llama import Llama
from warmroute.adapters.embedded.model.shares import MIN_ROWS, split
from warmroute.adapters.embedded.model.team import Meet, Team, blas_threads
from warmroute.adapters.embedded.model.weights import fuse_weights

WEIGHTS = fuse_weights(paired(halved_tensors()), CONFIG)
NAIVE = NaiveLlama(halved_tensors())
CLOSE = {"rtol": 0, "atol": 2e-4}
BLAS = ThreadpoolController().select(user_api="blas")


def parts_of(lengths: list[int], seed: int) -> list[Part]:
    """Prefills, chunks and decodes, each with pages of its own."""
    random, parts, first = np.random.default_rng(seed), [], 1
    for at, length in enumerate(lengths):
        start = int(random.choice([0, length - 1, length // 2]))
        parts.append(Part(draw_ids(length, seed + at), one_run(length, first), start))
        first += -(-length // BLOCK)
    return parts


@given(
    st.lists(st.integers(1, 150), min_size=1, max_size=6),
    st.integers(1, 5),
    st.integers(0, 99),
)
@settings(max_examples=50)
def test_shares_are_the_rows_of_the_batch_in_order(
    lengths: list[int], count: int, seed: int
) -> None:
    batch = make_batch(*parts_of(lengths, seed), every_row=True)
    shares = split(batch, CONFIG, count)
    assert 1 <= len(shares) <= count
    for name in ("token_ids", "positions", "slots"):
        joined = np.concatenate([getattr(share, name) for share in shares])
        np.testing.assert_array_equal(joined, getattr(batch, name))
    assert described(*shares) == described(batch)
    for share in shares:
        assert share.sample_rows.tolist() == list(range(len(share.token_ids)))


def described(*shares: Batch) -> list[tuple[int, int, int]]:
    """Each row's slot, the first page of its sequence, and how much it may see."""
    rows = []
    for share in shares:
        end = 0
        for one in share.sequences:
            assert one.start == end
            assert one.count >= 1
            end = one.start + one.count
            seen = one.context - one.count + 1
            rows += [
                (int(share.slots[at]), int(one.table[0]), seen + at - one.start)
                for at in range(one.start, end)
            ]
        assert end == len(share.token_ids)
    return rows


def test_later_rows_of_a_long_prompt_make_smaller_shares() -> None:
    """They attend to more."""
    ids = draw_ids(2_000)
    shares = split(make_batch(Part(ids, one_run(2_000))), CONFIG, 3)
    sizes = [len(share.token_ids) for share in shares]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


@pytest.mark.parametrize(("rows", "sizes"), [(3, [3]), (8, [4, 4]), (32, [16, 16])])
def test_sequences_that_decode_together_are_halved(rows: int, sizes: list[int]) -> None:
    """No weight is copied for so few rows, so that each share may have a few."""
    parts = [Part(draw_ids(9, at), one_run(9, 1 + 3 * at), 8) for at in range(rows)]
    shares = split(make_batch(*parts), CONFIG, 2)
    assert [len(share.token_ids) for share in shares] == sizes


def test_no_share_is_empty_where_one_row_outweighs_all_others() -> None:
    lengths = [2_000, *[1] * 7]
    firsts = np.cumsum([1, *(-(-each // BLOCK) for each in lengths)])
    parts = [
        Part(draw_ids(length), one_run(length, int(first)), length - 1)
        for length, first in zip(lengths, firsts, strict=False)
    ]
    shares = split(make_batch(*parts), CONFIG, 4)
    assert all(len(share.token_ids) for share in shares)


def test_too_few_rows_for_shares_that_copy_weights_are_not_cut() -> None:
    batch = make_batch(Part(draw_ids(200), one_run(200), start=201 - 2 * MIN_ROWS))
    assert split(batch, CONFIG, 4) == [batch]


def test_a_batch_that_sums_attention_is_not_cut() -> None:
    scores = np.zeros((CONFIG.num_layers, CONFIG.num_kv_heads, 200), np.float32)
    batch = make_batch(Part(draw_ids(200), one_run(200), scores=scores))
    assert split(batch, CONFIG, 2) == [batch]


@pytest.mark.parametrize("threads", [2, 3])
def test_shared_steps_give_the_logits_of_the_textbook(threads: int) -> None:
    """Two prompts, one of them in chunks, over scattered pages."""
    model, store = Llama(CONFIG, WEIGHTS, threads), make_store(128)
    ids, other = draw_ids(230, 1), draw_ids(90, 2)
    table = scattered_table(324, 128)
    first, second = table[:58], table[58:]
    run(model, store, Part(ids, first, 0, 110))
    batch = make_batch(Part(ids, first, 110), Part(other, second), every_row=True)
    assert len(split(batch, CONFIG, threads)) == threads
    found = model.forward(batch, store)
    expected = [*NAIVE.logits(ids)[110:], *NAIVE.logits(other)]
    np.testing.assert_allclose(found, expected, **CLOSE)


def test_a_failing_share_fails_the_step_and_nothing_else() -> None:
    """Its own error comes out, and the next step is computed."""
    model, store, ids = Llama(CONFIG, WEIGHTS, 3), make_store(), draw_ids(200)
    broken = make_batch(Part(ids, one_run(200)))
    broken.slots = broken.slots.copy()
    broken.slots[-1] = 1 << 40
    before = blas_threads()
    with pytest.raises(IndexError, match="out of bounds"):
        model.forward(broken, store)
    assert blas_threads() == before
    found = run(model, store, Part(ids, one_run(200)))
    np.testing.assert_allclose(found[0], NAIVE.logits(ids)[-1], **CLOSE)


def test_shares_meet_and_multiply_with_one_thread_each() -> None:
    team, begun = Team(3), []

    def share(at: int, meet: Meet) -> tuple[int, int, str]:
        begun.append(at)
        meet()
        assert {one["num_threads"] for one in BLAS.info()} <= {1}
        return at, len(begun), threading.current_thread().name

    before = blas_threads()
    results = team.run([partial(share, at) for at in range(3)])
    assert [at for at, _, _ in results] == [0, 1, 2]
    assert [seen for _, seen, _ in results] == [3, 3, 3]
    assert len({name for _, _, name in results}) == 3
    assert blas_threads() == before
