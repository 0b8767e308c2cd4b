"""Causal attention over paged keys and values.

Query heads of one group are stacked, so grouped-query attention is one product a
KV head and no key is ever repeated. Queries go in tiles, and a tile only meets the
keys in front of its last row: no score is computed for more than a tile's width of
masked keys, and the scores of a tile stay in the processor's cache.
"""

import numpy as np

from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.config import LlamaConfig
from warmroute.adapters.embedded.model.reach import Section
from warmroute.adapters.embedded.model.scratch import Scratch

TILE_SCORES = 1 << 20
"""Scores of one tile, all heads together: 4 MiB."""

MAX_TILE = 64
"""Queries of one tile at most."""

SAFE_SCORE = 40.0
"""Largest score whose exponential needs no shift, in either direction.

float32 holds e^88 and e^-87: sums of e^40 over any context, times any value, stay far
inside, and so do shares of a row that are worth adding to one of e^-40.
"""


class Attention:
    """Softmax(Q K^T / sqrt(d)) V."""

    __slots__ = ("_bias", "_group", "_heads", "_scale", "_scratch", "_width")

    def __init__(self, config: LlamaConfig, scratch: Scratch) -> None:
        self._heads = config.num_kv_heads
        self._group = config.group_size
        self._width = config.head_dim
        self._scale = np.float32(config.head_dim**-0.5)
        self._scratch = scratch
        self._bias: F32 = np.triu(
            np.full((MAX_TILE, MAX_TILE), -np.inf, np.float32), k=1
        )

    def attend(
        self,
        queries: F32,
        sections: list[Section],
        length: int,
        out: F32,
        received: F32 | None = None,
    ) -> None:
        """Attend with the newest tokens of a sequence.

        Args:
            queries: ``[n, heads, d]`` after RoPE, of the last n of *length* keys.
            sections: The keys and values, together *length* of them or more.
            length: Keys in reach of the last query.
            out: ``[n, heads, d]``, written.
            received: ``[kv_heads, >= length]``, raised by each key's attention.
        """
        count = len(queries)
        tile = self._tile(count, length)
        for start in range(0, count, tile):
            stop = min(start + tile, count)
            self._attend_tile(
                queries[start:stop],
                sections,
                length - count + stop,
                out[start:stop],
                received,
            )

    def _tile(self, count: int, length: int) -> int:
        fitting = TILE_SCORES // (length * self._heads * self._group)
        return max(1, min(count, MAX_TILE, fitting))

    def _attend_tile(
        self,
        queries: F32,
        sections: list[Section],
        visible: int,
        out: F32,
        received: F32 | None,
    ) -> None:
        scores = self._scores(queries, sections, visible)
        totals = exponentiate(scores)
        if received is not None:
            shares = (1 / totals)[:, None, :] @ scores
            received[:, :visible] += shares[:, 0]
        mixed = _mix(scores, sections, visible)
        mixed /= totals[..., None]
        by_query = mixed.reshape(self._heads, self._group, -1, self._width)
        grouped = out.reshape(-1, self._heads, self._group, self._width)
        grouped[...] = by_query.transpose(2, 0, 1, 3)

    def _scores(self, queries: F32, sections: list[Section], visible: int) -> F32:
        """Return ``[kv_heads, group * n, visible]``, later keys at minus infinity."""
        count = len(queries)
        shape = (self._heads, self._group, count, self._width)
        stacked = np.empty(shape, np.float32)
        grouped = queries.reshape(count, self._heads, self._group, self._width)
        np.multiply(grouped.transpose(1, 2, 0, 3), self._scale, out=stacked)
        flat = stacked.reshape(self._heads, -1, self._width)
        rows = self._group * count
        scores = self._scratch.take("scores", self._heads, rows, visible)
        start = 0
        for keys, _ in sections:
            stop = min(start + keys.shape[1], visible)
            seen = keys[:, : stop - start].transpose(0, 2, 1)
            np.matmul(flat, seen, out=scores[..., start:stop])
            start = stop
        if count > 1:
            newest = scores.reshape(self._heads, self._group, count, visible)
            newest[..., -count:] += self._bias[:count, :count]
        return scores


def exponentiate(scores: F32) -> F32:
    """Turn *scores* into softmax numerators in place, and return their sums.

    Rows are shifted only where one of them needs it: what lies within `SAFE_SCORE`
    of 0 can neither overflow nor vanish, and a pass over all scores is saved.

    Args:
        scores: ``[..., keys]``, contiguous; each row has a finite score.
    """
    highest = scores.max(axis=-1, keepdims=True)
    if max(highest.max(), -highest.min()) > SAFE_SCORE:
        scores -= highest
    np.exp(scores, out=scores)
    totals: F32 = scores @ np.ones(scores.shape[-1], np.float32)
    return totals


def _mix(shares: F32, sections: list[Section], visible: int) -> F32:
    """Return the values weighted by *shares*: ``[kv_heads, rows, d]``."""
    mixed: F32 | None = None
    start = 0
    for _, values in sections:
        stop = min(start + values.shape[1], visible)
        part = shares[..., start:stop] @ values[:, : stop - start]
        mixed = part if mixed is None else np.add(mixed, part, out=mixed)
        start = stop
    assert mixed is not None
    return mixed
