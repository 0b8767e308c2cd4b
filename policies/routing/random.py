"""Choose a backend at random."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random as Generator

from warmroute.policies.routing.base import Candidate, Choice, Query


class Random:
    """Choose every backend with the same probability."""

    name = "random"

    def __init__(self, *, rng: Generator | None = None) -> None:
        self._rng = rng or Generator()

    def choose(self, query: Query, candidates: Sequence[Candidate]) -> Choice:
        """Draw one candidate."""
        return Choice(self._rng.randrange(len(candidates)), "random")
