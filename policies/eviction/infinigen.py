"""InfiniGen: all KV in host memory, of which a part is fetched.

Lee et al. 2024, "InfiniGen: Efficient Generative Inference of Large Language Models
with Dynamic KV Cache Management" (OSDI), section 4.3: attention scores are
speculated one layer ahead (see `speculation`); tokens whose speculated score comes
within *alpha* of the largest are fetched, since exp(-alpha) bounds their weight
against the largest one; every head fetches the same number, the mean of what the
heads want, and never more than a cap. Nothing is lost: a token passed over now may
be fetched at the next step.

Deviation: under grouped-query attention the query heads of a group share keys, so
a KV head fetches what any of its query heads wants. Where the cap leaves tokens out,
heads compete, and distances to the largest score do not compare: a head that looks
everywhere at once holds all tokens near its largest, and would take every place from
one that looks for a single token. So tokens are ranked by the attention that they
would get, the largest of the group. For one head alone both orders are the same.
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
        """Return the tokens to fetch, those with the largest share of attention.

        Mutates nothing; O(heads * tokens).

        Args:
            scores: ``[kv_heads, group, tokens]``: speculated attention scores.
            cap: Most tokens fetched a KV head.

        Returns:
            ``[kv_heads, n]`` with 1 <= n <= *cap*: indices of tokens, unordered.
        """
        margins = scores - scores.max(axis=2, keepdims=True)
        wanted = (margins >= -self._alpha).any(axis=1)
        kv_heads, length = wanted.shape
        count = min(max(1, int(np.count_nonzero(wanted) / kv_heads)), cap, length)
        if count == length:
            return np.broadcast_to(np.arange(length), wanted.shape)
        margins -= np.log(np.exp(margins).sum(axis=2, keepdims=True))
        rank = margins.max(axis=1)
        return np.argpartition(rank, length - count, axis=1)[:, length - count :]
