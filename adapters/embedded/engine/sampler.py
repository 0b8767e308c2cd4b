"""Choosing the next token from logits."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from warmroute.adapters.embedded.engine.request import GenerationRequest
from warmroute.adapters.embedded.engine.stream import TokenLogprob

F32: TypeAlias = NDArray[np.float32]
F64: TypeAlias = NDArray[np.float64]

GREEDY_BELOW = 1e-5
"""Temperatures below this take the most likely token."""

_NUCLEUS = 512
"""Tokens that are sorted first: nearly always top-p needs no more."""


class Sampler:
    """Sample the tokens of one choice, with randomness of its own.

    The same request, index and logits give the same tokens, whatever else runs.

    Args:
        request: Temperature, top-p, seed, log probabilities, least tokens.
        index: The choice; each has its own stream of random numbers.
        eos_ids: End tokens, which ``min_tokens`` forbids for a while.
    """

    __slots__ = ("_eos_ids", "_random", "_request")

    def __init__(
        self, request: GenerationRequest, index: int, eos_ids: tuple[int, ...]
    ) -> None:
        seed = None if request.seed is None else (request.seed % 2**64, index)
        self._random = np.random.default_rng(seed)
        self._request = request
        self._eos_ids = list(eos_ids)

    def sample(self, logits: F32, num_generated: int) -> int:
        """Choose a token; O(vocabulary).

        Args:
            logits: One row, ``[vocab]``; not changed.
            num_generated: Tokens that the choice has so far.
        """
        if num_generated < self._request.min_tokens and self._eos_ids:
            logits = logits.copy()
            logits[self._eos_ids] = -np.inf
        if self._request.temperature < GREEDY_BELOW:
            return int(logits.argmax())
        weights = logits.astype(np.float64)
        weights -= weights.max()
        weights /= self._request.temperature
        np.exp(weights, out=weights)
        if self._request.top_p < 1:
            return self._sample_nucleus(weights)
        return self._draw(weights)

    def logprob(self, logits: F32, token_id: int) -> TokenLogprob:
        """Report the log probabilities that the request asks for."""
        shifted = logits.astype(np.float64) - float(logits.max())
        logprobs = shifted - np.log(np.exp(shifted).sum())
        best = _largest(logprobs, self._request.logprobs or 0)
        top = tuple((int(at), float(logprobs[at])) for at in best)
        return TokenLogprob(token_id, float(logprobs[token_id]), top)

    def _draw(self, weights: F64) -> int:
        sums = weights.cumsum()
        at = np.searchsorted(sums, self._random.random() * sums[-1], side="right")
        return int(min(at, len(sums) - 1))

    def _sample_nucleus(self, weights: F64) -> int:
        # Smallest set of tokens that holds top_p, the token that crosses included.
        share = self._request.top_p * weights.sum()
        order = _largest(weights, _NUCLEUS)
        sums = weights[order].cumsum()
        if sums[-1] < share:
            order = np.argsort(-weights, kind="stable")
            sums = weights[order].cumsum()
        count = int(np.searchsorted(sums, share)) + 1
        kept = order[:count]
        return int(kept[self._draw(weights[kept])])


def _largest(values: F64, count: int) -> NDArray[np.intp]:
    # Indices of the largest values, largest first, ties by index.
    count = min(count, len(values))
    if not count:
        return np.empty(0, np.intp)
    found = np.argpartition(-values, count - 1)[:count]
    return found[np.lexsort((found, -values[found]))]
