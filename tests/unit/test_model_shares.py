"""A step cut into shares, and what of a weight is whose."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.model_rig import (
    BLOCK,
    CONFIG,
    Part,
    draw_ids,
    make_batch,
    one_run,
)
from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.batch import Batch
from warmroute.adapters.embedded.model.member import Member
from warmroute.adapters.embedded.model.shares import split


def parts_of(lengths: list[int], seed: int) -> list[Part]:
    """Prefills, chunks and decodes, each with pages of its own."""
    random, parts, first = np.random.default_rng(seed), [], 1
    for at, length in enumerate(lengths):
        start = int(random.choice([0, length - 1, length // 2]))
        parts.append(Part(draw_ids(length, seed + at), one_run(length, first), start))
        first += -(-length // BLOCK)
    return parts


EMPTY = Batch(*(np.zeros(0, np.int32) for _ in range(3)), [], np.zeros(0, np.int64))


@given(
    st.lists(st.integers(1, 150), min_size=1, max_size=6),
    st.integers(1, 5),
    st.integers(0, 99),
)
@example([3], 3, 0)  # an empty share between two rows of one sequence
@settings(max_examples=50)
def test_shares_are_the_rows_of_the_batch_in_order(
    lengths: list[int], count: int, seed: int
) -> None:
    batch = make_batch(*parts_of(lengths, seed), every_row=True)
    shares = split(batch, count)
    assert len(shares) == count
    for name in ("token_ids", "positions", "slots"):
        joined = np.concatenate([getattr(share.batch, name) for share in shares])
        np.testing.assert_array_equal(joined, getattr(batch, name))
    assert described(*(share.batch for share in shares)) == described(batch)
    places = [at for share in shares for at in range(share.total)[share.rows]]
    assert places == list(range(len(batch.token_ids)))
    assert all(share.sample_rows is batch.sample_rows for share in shares)


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
    shares = split(make_batch(Part(ids, one_run(2_000))), 3)
    sizes = [len(share.batch.token_ids) for share in shares]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


@pytest.mark.parametrize(
    ("rows", "sizes"), [(0, [0, 0]), (1, [0, 1]), (3, [1, 2]), (8, [4, 4])]
)
def test_sequences_that_decode_together_are_halved(rows: int, sizes: list[int]) -> None:
    batch = decodes([9] * rows) if rows else EMPTY
    assert [len(share.batch.token_ids) for share in split(batch, 2)] == sizes


def test_a_row_that_sees_more_than_all_others_is_alone() -> None:
    shares = split(decodes([2_000, *[1] * 7]), 2)
    assert [len(share.batch.token_ids) for share in shares] == [1, 7]


def test_memories_and_sums_of_the_first_member_are_left_to_it() -> None:
    scores = np.zeros((CONFIG.num_layers, CONFIG.num_kv_heads, 200), np.float32)
    parts = [Part(draw_ids(200), one_run(200), scores=scores), *parts_of([9], 1)]
    first, *others = split(make_batch(*parts), 3)
    assert first.batch.sequences[0].scores is scores
    assert len(first.batch.token_ids) == first.total
    assert [len(share.batch.token_ids) for share in others] == [0, 0]


@given(st.integers(0, 3_000), st.integers(1, 9))
def test_columns_and_rows_of_all_members_are_all_of_them(width: int, size: int) -> None:
    for name in ("columns", "rows"):
        spans = [
            getattr(Member(take, rank=at, size=size), name)(width) for at in range(size)
        ]
        covered = [at for span in spans for at in range(span.start, span.stop)]
        assert covered == list(range(width))


def take(name: str, *shape: int) -> F32:
    raise AssertionError


def decodes(lengths: list[int]) -> Batch:
    firsts = np.cumsum([1, *(-(-each // BLOCK) for each in lengths)])
    parts = [
        Part(draw_ids(length), one_run(length, int(first)), length - 1)
        for length, first in zip(lengths, firsts, strict=False)
    ]
    return make_batch(*parts)
