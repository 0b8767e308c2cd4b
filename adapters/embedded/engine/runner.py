"""Turning planned work into a batch, and the batch into logits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from warmroute.adapters.embedded.engine.scheduler import Work
from warmroute.adapters.embedded.engine.token_budget import TokenBudgets
from warmroute.adapters.embedded.model.arrays import F32, I32, I64
from warmroute.adapters.embedded.model.batch import Batch, SequenceRows
from warmroute.adapters.embedded.model.crew import Crew


class Runner:
    """Compute planned work with the model.

    Args:
        crew: Computes with the model.
        block_size: Slots a page.
        budgets: Gives sequences the scores that their prefill must gather.
    """

    __slots__ = ("_block_size", "_budgets", "_crew")

    def __init__(self, crew: Crew, block_size: int, budgets: TokenBudgets) -> None:
        self._crew = crew
        self._block_size = block_size
        self._budgets = budgets

    def __repr__(self) -> str:
        return f"<Runner of {self._crew!r}>"

    def run(self, work: list[Work]) -> F32:
        """Compute all of *work* in one step.

        Returns:
            ``[n, vocab]``: the logits of those that are sampled, in their order.
        """
        return self._crew.forward(self.batch(work))

    def batch(self, work: list[Work]) -> Batch:
        """Lay out the tokens of a step; O(tokens + pages) array work."""
        rows = list(self._rows(work))
        spans = [(one.sequence.num_computed, one.num_tokens) for one in work]
        positions = _joined(np.arange(at, at + n, dtype=np.int32) for at, n in spans)
        tokens = (
            np.frombuffer(one.sequence.tokens[at : at + n], np.uint32)
            for one, (at, n) in zip(work, spans, strict=True)
        )
        slots = [
            self._slots(one, positions[one.start : one.start + one.count])
            for one in rows
        ]
        ends = [
            one.start + one.count - 1
            for one, planned in zip(rows, work, strict=True)
            if planned.is_sampled
        ]
        return Batch(
            _joined(tokens), positions, np.concatenate(slots), rows, np.array(ends, int)
        )

    def _rows(self, work: list[Work]) -> Iterator[SequenceRows]:
        start = 0
        for sequence, count in work:
            self._budgets.observe(sequence)
            yield SequenceRows(
                start,
                count,
                np.array(sequence.table.pages, np.int32),
                sequence.num_computed + count,
                sequence.budgeted,
                sequence.scores,
            )
            start += count

    def _slots(self, rows: SequenceRows, positions: I32) -> I64:
        if rows.attention is not None:
            return np.zeros(rows.count, np.int64)
        size = self._block_size
        pages = rows.table[positions // size].astype(np.int64)
        return pages * size + positions % size


def _joined(parts: Iterable[NDArray[np.integer]]) -> I32:
    return np.concatenate(list(parts)).astype(np.int32, copy=False)
