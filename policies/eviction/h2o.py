"""H2O: keep the heavy hitters of the attention, and the recent tokens.

Zhang et al. 2023, "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of
Large Language Models", section 4 and algorithm 1: the score of a token is the
attention it received, summed over all queries so far; the lowest one is evicted,
greedily and for good. Half of the budget is for the newest tokens (section 5).

Deviations. With grouped-query attention the paper's "head" is a KV head here: the
probabilities of the query heads that share it are summed, because they share its
cache. An optional number of first tokens is never evicted; heavy hitters hold them
anyway as a rule. Keys keep the position they had in the sequence (see `sinks`).
"""

from typing import ClassVar

import numpy as np

from warmroute.policies.eviction.token_base import Floats, Indices, check_protected


class H2O:
    """Evict the token with the least attention received, but no recent one.

    Args:
        capacity: Tokens that a row may keep.
        sinks: First tokens never evicted.
        recent: Newest tokens never evicted, the incoming one included; half of
            the capacity when None.

    Raises:
        PolicyError: Sinks and recent tokens together exceed the capacity.
    """

    __slots__ = ("_recent", "_sinks")
    name: ClassVar[str] = "h2o"
    is_observed: ClassVar[bool] = True

    def __init__(
        self, capacity: int, sinks: int = 0, recent: int | None = None
    ) -> None:
        self._recent = max(1, capacity // 2) if recent is None else recent
        self._sinks = sinks
        check_protected(self.name, sinks, self._recent, capacity)

    def worth(self, positions: Indices, scores: Floats, incoming: int) -> Floats:
        """Return the scores, and infinity for sinks and recent tokens."""
        worth = scores.copy()
        worth[positions > incoming - self._recent] = np.inf
        if self._sinks:
            worth[positions < self._sinks] = np.inf
        return worth
