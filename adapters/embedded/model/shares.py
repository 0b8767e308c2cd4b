"""A step cut into shares of its rows that take about the same time."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from warmroute.adapters.embedded.model.batch import Batch, SequenceRows
from warmroute.adapters.embedded.model.config import LlamaConfig
from warmroute.adapters.embedded.model.products import FEW_ROWS

MIN_ROWS = 64
"""Rows of a share at least: each share reads all weights, and BLAS copies them."""

MIN_FEW_ROWS = 2
"""The same where each share has `FEW_ROWS` at most, for which nothing is copied."""

ATTENTION_COST = 2.0
"""What a number of attention costs, where one of a weight costs 1."""


def split(batch: Batch, config: LlamaConfig, count: int) -> list[Batch]:
    """Cut *batch* into *count* shares, or fewer where they would be small.

    Rows of one sequence may go to several shares: what a row attends to is stored by
    all shares before one of them attends. Sums of received attention are kept by one
    thread, so a batch with any is left whole.
    """
    rows = len(batch.token_ids)
    least = MIN_FEW_ROWS if rows <= count * FEW_ROWS else MIN_ROWS
    count = min(count, rows // least)
    if count < 2 or any(one.scores is not None for one in batch.sequences):
        return [batch]
    costs = _costs(batch, config)
    ends = np.cumsum(costs)
    shares = np.arange(1, count) * (ends[-1] / count)
    cuts = np.searchsorted(ends - costs / 2, shares).tolist()
    bounds = sorted({0, *cuts, rows})
    return [_share(batch, start, stop) for start, stop in pairwise(bounds)]


def _costs(batch: Batch, config: LlamaConfig) -> NDArray[np.float64]:
    """Return what each row takes in a layer, in products of two numbers."""
    heads = config.query_size + config.kv_size
    weights = 2 * heads + 3 * config.intermediate_size
    attention = 2 * config.query_size * ATTENTION_COST
    seen = batch.positions.astype(np.float64) + 1
    return config.hidden_size * weights + attention * seen


def _share(batch: Batch, start: int, stop: int) -> Batch:
    """Return the rows from *start* to *stop* as a batch of their own."""
    wanted = batch.sample_rows
    return Batch(
        batch.token_ids[start:stop],
        batch.positions[start:stop],
        batch.slots[start:stop],
        [
            _part(one, start, stop)
            for one in batch.sequences
            if one.start < stop and one.start + one.count > start
        ],
        wanted[(wanted >= start) & (wanted < stop)] - start,
    )


def _part(rows: SequenceRows, start: int, stop: int) -> SequenceRows:
    """Return what of *rows* lies between two rows of the batch, counted from there."""
    end = rows.start + rows.count
    first, last = max(rows.start, start), min(end, stop)
    return SequenceRows(
        first - start,
        last - first,
        rows.table,
        rows.context - (end - last),
        rows.attention,
    )
