"""Guess the attention scores of a layer before its input exists.

Lee et al. 2024 (InfiniGen, OSDI), sections 4.2 and 4.3: consecutive layers have
similar inputs, so the attention input of layer l - 1 times a part of the query
weights of layer l, against the same part of the cached keys, tells which keys will
matter in layer l, early enough to fetch them.

Three deviations, each forced by Llama-like models:

- The paper skews W_q and W_k offline by an SVD, so that few columns carry the
  score. That needs a fixed product W_q W_k^T, and RoPE puts a rotation by the
  distance in between. A rotation leaves one pair of numbers of a head to itself,
  so the part is made of whole *pairs*, chosen as the paper chooses columns: by the
  sum of the magnitudes of queries and keys. Guessed queries are turned like true
  ones, and keys are taken as they are cached, after RoPE.
- The query heads of a group share one choice of pairs, because they share keys.
- What a layer adds to its input on average does not depend on the token. This
  shift is measured offline, in the run that chooses the pairs, and added to the
  input; without it the guess misses the layers that add much.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from warmroute.policies.errors import PolicyError
from warmroute.policies.eviction.token_base import Floats, Indices

Turns: TypeAlias = NDArray[np.complex64]
"""RoPE's unit numbers of some positions: ``[tokens, head_dim / 2]``."""


def choose_pairs(queries: Floats, keys: Floats, share: float) -> Indices:
    """Choose the rotation pairs that carry most of the scores.

    Args:
        queries: ``[tokens, heads, d]`` of a sample; pair i is at 2i and 2i + 1.
        keys: ``[tokens, kv_heads, d]`` of the sample.
        share: Share of the pairs to choose; 0.3 in the paper. At least one is.

    Returns:
        ``[kv_heads, pairs]``, ascending.

    Raises:
        PolicyError: The share is not above 0 and at most 1.
    """
    if not 0 < share <= 1:
        raise PolicyError(
            f"infinigen's partial share is {share} (allowed: above 0, up to 1); 0.5 "
            "keeps half of each head"
        )
    kv_heads, width = keys.shape[1:]
    of_queries = _magnitudes(queries).reshape(kv_heads, -1, width // 2).mean(axis=1)
    total = of_queries + _magnitudes(keys)
    count = num_pairs(width, share)
    return np.sort(np.argsort(-total, axis=1)[:, :count], axis=1)


def num_pairs(head_dim: int, share: float) -> int:
    """Return how many of the rotation pairs a *share* is, at least one."""
    return max(1, round(share * (head_dim // 2)))


def _magnitudes(heads: Floats) -> Floats:
    """Return the mean magnitude ``[n, d / 2]`` of each pair."""
    pairs = heads.reshape(*heads.shape[:2], -1, 2)
    magnitudes: Floats = np.hypot(pairs[..., 0], pairs[..., 1]).mean(axis=0)
    return magnitudes


class Speculation:
    """Partial query weights of one layer, for the input of the one before.

    Args:
        query_weights: ``[heads, d, hidden]`` of the layer, its norm's gain in it.
        pairs: ``[kv_heads, pairs]`` from `choose_pairs`.
        shift: ``[hidden]``: mean of this layer's input minus the one before's.
    """

    __slots__ = ("_columns", "_offset", "_pairs", "_scale", "_weights")

    def __init__(self, query_weights: Floats, pairs: Indices, shift: Floats) -> None:
        _, head_dim, hidden = query_weights.shape
        kv_heads = len(pairs)
        columns = (2 * pairs[:, :, None] + np.arange(2)).reshape(kv_heads, -1)
        grouped = query_weights.reshape(kv_heads, -1, head_dim, hidden)
        kept = np.take_along_axis(grouped, columns[:, None, :, None], axis=2)
        self._pairs = pairs
        self._columns: Indices = columns
        self._weights: Floats = kept.reshape(-1, hidden)
        self._offset: Floats = self._weights @ shift
        self._scale = np.float32(head_dim**-0.5)

    def __repr__(self) -> str:
        return f"<Speculation on {self._pairs.shape[1]} pairs a KV head>"

    @property
    def part_width(self) -> int:
        """Numbers of a head that the speculation looks at: 2 a pair."""
        return 2 * len(self._pairs[0])

    @property
    def nbytes(self) -> int:
        """Bytes of the partial weights."""
        return self._weights.nbytes

    def queries(self, inputs: Floats, turns: Turns) -> Floats:
        """Guess partial queries from the attention inputs of the layer before.

        Args:
            inputs: ``[tokens, hidden]``, normed, without a gain.
            turns: ``[tokens, d / 2]``, those of the tokens' positions.

        Returns:
            ``[tokens, kv_heads, group, 2 * pairs]``, turned and scaled.
        """
        guessed = inputs @ self._weights.T
        guessed += self._offset
        guessed *= self._scale
        return self._turned(guessed, turns)

    def part(self, queries: Floats) -> Floats:
        """Take the same part of true *queries* ``[tokens, heads, d]``, scaled."""
        kv_heads = len(self._columns)
        grouped = queries.reshape(len(queries), kv_heads, -1, queries.shape[-1])
        part = np.take_along_axis(grouped, self._columns[None, :, None], axis=3)
        part *= self._scale
        return part

    def keys(self, keys: Floats) -> Floats:
        """Take the part of *keys* ``[kv_heads, tokens, d]`` that scores need."""
        return np.take_along_axis(keys, self._columns[:, None], axis=2)

    def _turned(self, guessed: Floats, turns: Turns) -> Floats:
        kv_heads, pairs = self._pairs.shape
        numbers = guessed.view(np.complex64)
        shaped = numbers.reshape(len(guessed), kv_heads, -1, pairs)
        shaped *= turns[:, self._pairs][:, :, None]
        return guessed.reshape(len(guessed), kv_heads, -1, 2 * pairs)


def speculate(queries: Floats, keys: Floats) -> Floats:
    """Return guessed scores ``[kv_heads, group, tokens]``.

    Args:
        queries: ``[kv_heads, group, n]`` of one token.
        keys: ``[kv_heads, tokens, n]``, partial as the queries are.
    """
    scores: Floats = queries @ keys.swapaxes(1, 2)
    return scores
