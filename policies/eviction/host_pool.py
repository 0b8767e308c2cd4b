"""Which token leaves a full host pool: InfiniGen's memory limit.

Lee et al. 2024 (OSDI), "InfiniGen", section 4.4 and table 2: host memory holds the
KV of a limited number of tokens; when it is full, a new token overwrites a victim.
FIFO drops the first tokens, which all later ones attend to, and quality collapses;
LRU and a counter of fetches lose nothing. The counters are halved when one of them
saturates, as in the paper. A new token has not been fetched yet, so the newest half
of the pool is safe from LRU and counter; the authors' experiments do the same.

The three are `TokenRule` objects: what they go by lies in the scores of `KeptTokens`.
"""

from typing import ClassVar, Protocol

import numpy as np

from warmroute.policies.errors import PolicyError
from warmroute.policies.eviction.kept_tokens import KeptTokens
from warmroute.policies.eviction.token_base import Floats, Indices, TokenRule
from warmroute.policies.eviction.window import Window
from warmroute.policies.registry import explain_unknown

MAX_COUNT = 255.0
"""Where a counter saturates: one byte."""


class PoolRule(TokenRule, Protocol):
    """A token rule that goes by what was fetched when."""

    def fetched(self, kept: Floats, slots: Indices, step: int) -> None:
        """Note in the scores *kept* ``[rows, tokens]`` that *slots* were fetched.

        Args:
            kept: Changed in place.
            slots: ``[rows, n]``, none twice in a row.
            step: Number that rises by 1 a step.
        """
        ...


class Fifo(Window):
    """Drop the oldest token."""

    __slots__ = ()
    name: ClassVar[str] = "fifo"

    def fetched(self, kept: Floats, slots: Indices, step: int) -> None:
        """Forget it: the order of arrival is all that counts."""


class LeastRecent:
    """Drop the token whose last fetch is longest ago."""

    __slots__ = ()
    name: ClassVar[str] = "lru"
    is_observed: ClassVar[bool] = False

    def worth(self, positions: Indices, scores: Floats, incoming: int) -> Floats:
        """Return the scores, and infinity for the newest half of the pool."""
        safe = positions > incoming - positions.shape[1] // 2
        return np.where(safe, np.float32(np.inf), scores)

    def fetched(self, kept: Floats, slots: Indices, step: int) -> None:
        """Write the step down."""
        np.put_along_axis(kept, slots, np.float32(step), axis=1)


class Counter(LeastRecent):
    """Drop the token that was fetched least often."""

    __slots__ = ()
    name: ClassVar[str] = "counter"

    def fetched(self, kept: Floats, slots: Indices, step: int) -> None:
        """Count up; halve all counters of a row in which one saturates."""
        counts = np.take_along_axis(kept, slots, axis=1) + 1
        np.put_along_axis(kept, slots, counts, axis=1)
        kept[(counts >= MAX_COUNT).any(axis=1)] *= np.float32(0.5)


POOL_RULES: dict[str, type[PoolRule]] = {
    rule.name: rule for rule in (Counter, Fifo, LeastRecent)
}
"""The victim choices of a host pool by name."""


class HostPool(KeptTokens):
    """The tokens whose KV lies in host memory, slot by slot.

    Args:
        victims: ``counter``, ``fifo`` or ``lru``.
        rows: KV heads of the layer.
        capacity: Tokens that the pool holds a row.

    Raises:
        PolicyError: Unknown choice of victims, or no capacity.
    """

    __slots__ = ("_fetches", "_step")

    def __init__(self, victims: str, rows: int, capacity: int) -> None:
        if victims not in POOL_RULES:
            raise PolicyError(explain_unknown("choice of victims", victims, POOL_RULES))
        self._fetches = POOL_RULES[victims]()
        self._step = 0
        super().__init__(self._fetches, rows, capacity)

    def start(self, scores: Floats) -> Indices:
        """Choose what is held of a prompt: see `KeptTokens.start`.

        Nothing of it was fetched yet. Where the prompt is longer than the pool, the
        attention received stands in for the fetches that did not take place.
        """
        chosen = super().start(scores)
        self.scores[:] = 0
        return chosen

    def fetched(self, slots: Indices) -> None:
        """Note that the tokens in *slots* ``[rows, n]`` were fetched in this step."""
        self._step += 1
        self._fetches.fetched(self.scores[:, : self.count], slots, self._step)
