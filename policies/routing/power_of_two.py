"""Choose the less loaded of two backends drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from warmroute.policies.routing.base import Candidate, Choice, Query


class PowerOfTwo:
    """Choose the less loaded of two backends drawn at random.

    Mitzenmacher 2001, "The Power of Two Choices in Randomized Load Balancing".
    O(1): the policy for fleets of hundreds where caches do not matter.
    """

    name = "power_of_two"

    def __init__(self, *, rng: Random | None = None) -> None:
        self._rng = rng or Random()

    def choose(self, query: Query, candidates: Sequence[Candidate]) -> Choice:
        """Draw two different candidates and choose the one with fewer requests."""
        count = len(candidates)
        first = self._rng.randrange(count)
        if count == 1:
            return Choice(first, "load")
        second = self._rng.randrange(count - 1)
        second += second >= first
        if candidates[second].requests < candidates[first].requests:
            return Choice(second, "load")
        return Choice(first, "load")
