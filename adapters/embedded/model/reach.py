"""Where the keys of one sequence lie in the store."""

import numpy as np

from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.batch import SequenceRows
from warmroute.policies.kv.pool import NULL_PAGE

Section = tuple[F32, F32]
"""Keys and values ``[kv_heads, n, d]`` of a stretch of slots."""

MAX_RUNS = 4
"""Runs of pages read where they lie; more are gathered first.

A single row is worth a gathering only where most runs are of one page.
"""


class Reach:
    """The resident slots of a sequence, planned once a step for all layers.

    Pages with consecutive numbers form a run, which is a view of the store. A
    table of more than `MAX_RUNS` runs is copied together, whole pages at a time, to
    the same memory in every layer.
    Null pages are passed over, so *length* counts the keys that are left.

    Args:
        rows: The sequence.
        block_size: Slots a page.
    """

    __slots__ = ("_block_size", "_pages", "_room", "_runs", "length")

    def __init__(self, rows: SequenceRows, block_size: int) -> None:
        pages = rows.table[: -(-rows.context // block_size)]
        self.length = rows.context
        if not pages.all():
            kept = pages != NULL_PAGE
            pages = pages[kept]
            self.length -= int(np.count_nonzero(~kept)) * block_size
        self._block_size = block_size
        self._pages = pages
        self._room: F32 | None = None
        most = MAX_RUNS if rows.count > 1 else max(MAX_RUNS, len(pages) // 2)
        self._runs = _find_runs(pages, block_size, self.length, most)

    def __repr__(self) -> str:
        return f"<Reach {self.length} keys in {len(self._runs) or 'many'} runs>"

    def sections(self, pair: F32) -> list[Section]:
        """Return the keys and values of one layer, in the order of the table.

        They may be gone when another layer is asked for.

        Args:
            pair: ``[2 * kv_heads, slots, d]`` of a `KVStore`.
        """
        heads = len(pair) // 2
        if self._runs:
            return [(pair[:heads, a:b], pair[heads:, a:b]) for a, b in self._runs]
        gathered = self._gather(pair)
        return [(gathered[:heads], gathered[heads:])]

    def _gather(self, pair: F32) -> F32:
        both, _, width = pair.shape
        paged = pair.reshape(both, -1, self._block_size * width)
        if self._room is None:
            shape = both, len(self._pages), paged.shape[2]
            self._room = np.empty(shape, np.float32)
        # Without a mode that clips, NumPy copies once more.
        paged.take(self._pages, axis=1, out=self._room, mode="clip")
        return self._room.reshape(both, -1, width)[:, : self.length]


def _find_runs(
    pages: np.ndarray[tuple[int, ...], np.dtype[np.int32]],
    block_size: int,
    length: int,
    most: int,
) -> list[tuple[int, int]]:
    """Return first and last slot of each run; nothing where there are over *most*."""
    breaks = np.flatnonzero(np.diff(pages) != 1) + 1
    if len(breaks) >= most:
        return []
    starts = [0, *breaks.tolist()]
    stops = [*breaks.tolist(), len(pages)]
    runs = [
        (int(pages[a]) * block_size, (int(pages[b - 1]) + 1) * block_size)
        for a, b in zip(starts, stops, strict=True)
    ]
    first, last = runs[-1]
    runs[-1] = (first, last - (len(pages) * block_size - length))
    return runs
