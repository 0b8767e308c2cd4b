"""A tile of queries over the keys in their reach, piece by piece.

A softmax is a quotient of sums over the keys, so that pieces of keys only add up. The
scores of one piece stay in the processor's cache from product to product; they are
``[keys, queries]``, which BLAS makes faster than the transpose.
"""

from collections.abc import Iterator

import numpy as np

from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.products import UNPACKED
from warmroute.adapters.embedded.model.reach import Section
from warmroute.adapters.embedded.model.scratch import Scratch

MAX_QUERIES = 64
"""Queries of one tile at most."""

_BIAS: F32 = np.tril(np.full((MAX_QUERIES, MAX_QUERIES), -np.inf, np.float32), k=-1)
"""Keys in rows, queries in columns: a query does not see the keys behind it."""


class Tile:
    """Some queries that stand side by side, the last of which sees all keys.

    Args:
        queries: ``[n, kv_heads, group, d]``, at most `MAX_QUERIES`.
        sections: The keys and values, *visible* of them or more.
        visible: Keys in reach of the last query.
        scratch: Gives the memory; one tile of it is in use at a time.
    """

    __slots__ = ("_first", "_pieces", "_scratch", "_stacked")

    def __init__(
        self, queries: F32, sections: list[Section], visible: int, scratch: Scratch
    ) -> None:
        count, heads, group, width = queries.shape
        stacked = scratch.take("queries", heads, width, group, count)
        np.multiply(queries.transpose(1, 3, 2, 0), np.float32(width**-0.5), out=stacked)
        self._scratch = scratch
        self._stacked = stacked
        self._first = visible - count
        fitting = UNPACKED // (group * count * width)
        self._pieces = [
            *_cut(sections, 0, self._first, max(16, fitting // 16 * 16)),
            *_cut(sections, self._first, visible, count),
        ]

    def __repr__(self) -> str:
        return f"<Tile of {self._stacked.shape[3]} queries behind {self._first} keys>"

    def sums(self, shift: F32 | float) -> tuple[F32, F32]:
        """Return the sums of the exponentials, and of the values weighted by them.

        Args:
            shift: ``[kv_heads, group * n]``, subtracted from the scores first.

        Returns:
            ``[kv_heads, group * n]`` and ``[kv_heads, group * n, d]``.
        """
        heads, width, group, count = self._stacked.shape
        totals = np.zeros((heads, group * count), np.float32)
        mixed = self._scratch.take("sums", heads, group * count, width)
        mixed.fill(0)
        part = self._scratch.take("part", *mixed.shape)
        for _, numerators, values in self._exponentials(shift):
            totals += np.ones(numerators.shape[1], np.float32) @ numerators
            mixed += np.matmul(numerators.swapaxes(1, 2), values, out=part)
        return totals, mixed

    def highest(self) -> F32:
        """Return the highest score of each row, ``[kv_heads, group * n]``."""
        each = [scores.max(axis=1) for _, scores, _ in self._scores()]
        highest: F32 = np.maximum.reduce(each)
        return highest

    def receive(self, received: F32, shift: F32 | float, totals: F32) -> None:
        """Raise *received* ``[kv_heads, keys]`` by the attention of each key."""
        for start, numerators, _ in self._exponentials(shift):
            stop = start + numerators.shape[1]
            received[:, start:stop] += np.matvec(numerators, 1 / totals)

    def _exponentials(self, shift: F32 | float) -> Iterator[tuple[int, F32, F32]]:
        for start, scores, values in self._scores():
            if isinstance(shift, np.ndarray):
                scores -= shift[:, None]
            np.exp(scores, out=scores)
            yield start, scores, values

    def _scores(self) -> Iterator[tuple[int, F32, F32]]:
        """Yield place, scores ``[kv_heads, keys, group * n]`` and values of a piece."""
        heads, width, group, count = self._stacked.shape
        flat = self._stacked.reshape(heads, width, -1)
        for start, keys, values in self._pieces:
            size = keys.shape[1]
            scores = self._scratch.take("scores", heads, size, group, count)
            rows: F32 = scores.reshape(heads, size, -1)
            np.matmul(keys, flat, out=rows)
            behind = start - self._first
            if behind >= 0:
                scores += _BIAS[behind : behind + size, None, :count]
            yield start, rows, values


def _cut(
    sections: list[Section], first: int, last: int, size: int
) -> Iterator[tuple[int, F32, F32]]:
    """Yield place, keys and values of at most *size* keys at a time."""
    place = 0
    for keys, values in sections:
        end = min(last, place + keys.shape[1])
        for start in range(max(first, place), end, size):
            piece = slice(start - place, min(start + size, end) - place)
            yield start, keys[:, piece], values[:, piece]
        place += keys.shape[1]
