"""A step cut into shares of its rows that take about the same time to attend."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from warmroute.adapters.embedded.model.arrays import Rows
from warmroute.adapters.embedded.model.batch import Batch, SequenceRows

_ROW_COST = 150
"""What a row costs besides its attention, in keys attended to."""


class Share(NamedTuple):
    """The rows of a step that one member attends with.

    Attributes:
        batch: These rows.
        start: The first of them in the step.
        total: Rows of the step.
        sample_rows: Rows of the step whose logits are wanted.
    """

    batch: Batch
    start: int
    total: int
    sample_rows: Rows

    @property
    def rows(self) -> slice:
        """Where these rows are in the step."""
        return slice(self.start, self.start + len(self.batch.token_ids))


def split(batch: Batch, count: int) -> list[Share]:
    """Cut *batch* into *count* shares, some of them empty where there are few rows.

    Rows of one sequence may go to several shares: what a row attends to is stored by
    all members before one of them attends. Memories and sums that only the first
    member has are for it alone, so a batch with any is all its own.
    """
    rows = len(batch.token_ids)
    costs = batch.positions.astype(np.float64) + 1 + _ROW_COST
    ends = np.cumsum(costs)
    cuts = np.searchsorted(
        ends - costs / 2, np.arange(1, count) * (costs.sum() / count)
    ).tolist()
    if any(one.attention or one.scores is not None for one in batch.sequences):
        cuts = [rows] * (count - 1)
    return [_share(batch, start, stop) for start, stop in pairwise([0, *cuts, rows])]


def _share(batch: Batch, start: int, stop: int) -> Share:
    part = Batch(
        batch.token_ids[start:stop],
        batch.positions[start:stop],
        batch.slots[start:stop],
        [
            _part(one, start, stop)
            for one in batch.sequences
            if max(one.start, start) < min(one.start + one.count, stop)
        ],
        batch.sample_rows[:0],
    )
    return Share(part, start, len(batch.token_ids), batch.sample_rows)


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
        rows.scores,
    )
