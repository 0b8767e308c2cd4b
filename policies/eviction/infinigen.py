"""InfiniGen: all KV in host memory, of which a part is fetched.

Lee et al. 2024, "InfiniGen: Efficient Generative Inference of Large Language Models
with Dynamic KV Cache Management" (OSDI), section 4.3: attention scores are
speculated one layer ahead (see `speculation`); tokens whose speculated score comes
within *alpha* of the largest are fetched, since exp(-alpha) bounds their weight
against the largest one; every head fetches the same number, the mean of what the
heads want, and never more than a cap. Nothing is lost: a token passed over now may
be fetched at the next step.

Deviation: under grouped-query attention the query heads of a group share keys, so
a KV head fetches what any of its query heads wants: a token's margin is that of the
head that comes nearest to its own largest score.
"""

import math

import numpy as np

from warmroute.policies.errors import PolicyError
from warmroute.policies.eviction.token_base import Floats, Indices


class InfiniGen:
    """Choose which tokens of the host pool are fetched.

    Args:
        alpha: Distance to the largest score within which a token is fetched, in
            units of the scaled scores (natural logarithm); 4 to 5 in the paper.
            Infinite: as many as the cap allows.

    Raises:
        PolicyError: Alpha is negative or not a number.
    """

    __slots__ = ("_alpha",)
    name = "infinigen"

    def __init__(self, alpha: float = 10.0) -> None:
        if math.isnan(alpha) or alpha < 0:
            raise PolicyError(
                f"infinigen's alpha is {alpha} (allowed: 0 or more); 5 fetches tokens "
                "down to 0.7 % of the largest weight"
            )
        self._alpha = np.float32(alpha)

    def choose(self, scores: Floats, cap: int) -> Indices:
        """Return the tokens to fetch, those of the largest margin.

        Mutates nothing; O(heads * tokens).

        Args:
            scores: ``[kv_heads, group, tokens]``: speculated attention scores.
            cap: Most tokens fetched a KV head.

        Returns:
            ``[kv_heads, n]`` with 1 <= n <= *cap*: indices of tokens, unordered.
        """
        margins = (scores - scores.max(axis=2, keepdims=True)).max(axis=1)
        length = margins.shape[1]
        wanted = np.count_nonzero(margins >= -self._alpha, axis=1).mean()
        count = min(max(1, int(wanted)), cap, length)
        if count == length:
            return np.broadcast_to(np.arange(length), margins.shape)
        return np.argpartition(margins, length - count, axis=1)[:, length - count :]
