"""Causal attention over paged keys and values.

Query heads of one group are stacked, so grouped-query attention is one product a
KV head and no key is ever repeated. Queries go in tiles, and a tile only meets the
keys in front of its last row: no score is computed for more than a tile's width of
masked keys.
"""

import numpy as np

from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.config import LlamaConfig
from warmroute.adapters.embedded.model.reach import Section
from warmroute.adapters.embedded.model.scratch import Scratch
from warmroute.adapters.embedded.model.tile import MAX_QUERIES, Tile

SAFE_SCORE = 40.0
"""Largest score whose exponential needs no shift, in either direction.

float32 holds e^88 and e^-87: sums of e^40 over any context, times any value, stay far
inside, and so do shares of a row that are worth adding to one of e^-40.
"""

_SAFE_TOTAL = np.exp(np.float32(SAFE_SCORE))


class Attention:
    """Softmax(Q K^T / sqrt(d)) V."""

    __slots__ = ("_group", "_heads", "_scratch", "_width")

    def __init__(self, config: LlamaConfig, scratch: Scratch) -> None:
        self._heads = config.num_kv_heads
        self._group = config.group_size
        self._width = config.head_dim
        self._scratch = scratch

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
        grouped = queries.reshape(count, self._heads, self._group, self._width)
        written = out.reshape(grouped.shape)
        for start in range(0, count, MAX_QUERIES):
            stop = min(start + MAX_QUERIES, count)
            visible = length - count + stop
            tile = Tile(grouped[start:stop], sections, visible, self._scratch)
            mixed = self._mix(tile, received)
            by_query = mixed.reshape(self._heads, self._group, -1, self._width)
            written[start:stop] = by_query.transpose(2, 0, 1, 3)

    def _mix(self, tile: Tile, received: F32 | None) -> F32:
        """Return ``[kv_heads, group * n, d]``.

        Rows are shifted only where one of them needs it. The sums tell: scores within
        `SAFE_SCORE` of 0 can neither overflow nor vanish, and a pass is saved.
        """
        shift: F32 | float = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            totals, mixed = tile.sums(shift)
        if not 1 / _SAFE_TOTAL < totals.min() <= totals.max() < _SAFE_TOTAL:
            shift = tile.highest()
            totals, mixed = tile.sums(shift)
        if received is not None:
            tile.receive(received, shift, totals)
        mixed /= totals[..., None]
        return mixed


def exponentiate(scores: F32) -> F32:
    """Turn *scores* into softmax numerators in place, and return their sums.

    Rows are shifted only where one of them needs it: see `SAFE_SCORE`.

    Args:
        scores: ``[..., keys]``, contiguous; each row has a finite score.
    """
    highest = scores.max(axis=-1, keepdims=True)
    if max(highest.max(), -highest.min()) > SAFE_SCORE:
        scores -= highest
    np.exp(scores, out=scores)
    totals: F32 = scores @ np.ones(scores.shape[-1], np.float32)
    return totals
