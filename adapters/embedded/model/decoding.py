"""Attention of all sequences that add one token in a step.

Only the two products differ from sequence to sequence; the softmax runs over the
scores of all of them, laid end to end without padding.
"""

from collections.abc import Sequence

import numpy as np

from warmroute.adapters.embedded.model.arrays import F32, I64
from warmroute.adapters.embedded.model.attention import exponentiate
from warmroute.adapters.embedded.model.reach import Reach


class DecodeAttention:
    """The single-row sequences of one step, planned once for all layers.

    Args:
        rows: The row of each sequence in the batch.
        reaches: Their keys.
    """

    __slots__ = ("_lengths", "_reaches", "_rows", "_starts")

    def __init__(self, rows: Sequence[int], reaches: Sequence[Reach]) -> None:
        self._rows: I64 = np.array(rows, np.int64)
        self._reaches = reaches
        self._lengths: I64 = np.array([each.length for each in reaches], np.int64)
        self._starts: I64 = np.cumsum(self._lengths) - self._lengths

    def __repr__(self) -> str:
        return f"<DecodeAttention {len(self._rows)} rows>"

    def attend(self, queries: F32, pair: F32, out: F32) -> None:
        """Attend over one layer.

        Args:
            queries: ``[T, heads, d]`` after RoPE.
            pair: Keys and values of the layer, as `KVStore.pairs`.
            out: ``[T, heads, d]``, its decode rows are written.
        """
        count, kv_heads, width = len(self._rows), len(pair) // 2, pair.shape[2]
        if not count:
            return
        scaled = queries[self._rows] * np.float32(width**-0.5)
        grouped = scaled.reshape(count, kv_heads, -1, width)
        size = int(self._lengths.sum())
        scores: F32 = np.empty((kv_heads, grouped.shape[2], size), np.float32)
        values, start = [], 0
        for at, reach in enumerate(self._reaches):
            for keys, section in reach.sections(pair):
                span = slice(start, start + keys.shape[1])
                np.matvec(keys[:, None], grouped[at], out=scores[..., span])
                values.append((at, span, section))
                start = span.stop
        totals = self._exponentiate(scores)
        mixed = np.zeros_like(grouped)
        for at, span, section in values:
            mixed[at] += np.vecmat(scores[..., span], section[:, None])
        mixed /= totals.transpose(2, 0, 1)[..., None]
        out[self._rows] = mixed.reshape(count, -1, width)

    def _exponentiate(self, scores: F32) -> F32:
        """Turn *scores* into softmax numerators; return sums ``[.., .., count]``."""
        if len(self._rows) == 1:
            return exponentiate(scores)[..., None]
        highest = np.maximum.reduceat(scores, self._starts, axis=-1)
        scores -= np.repeat(highest, self._lengths, axis=-1)
        np.exp(scores, out=scores)
        totals: F32 = np.add.reduceat(scores, self._starts, axis=-1)
        return totals
