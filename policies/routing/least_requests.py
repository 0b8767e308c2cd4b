"""Choose the backend with the fewest requests in flight."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from warmroute.policies.routing.base import Candidate, Choice, Query


def draw_least_loaded(candidates: Sequence[Candidate], rng: Random) -> int:
    """Return the place of the candidate with the fewest requests, ties at random."""
    requests = [one.requests for one in candidates]
    least = min(requests)
    if requests.count(least) == 1:
        return requests.index(least)
    return rng.choice([i for i, count in enumerate(requests) if count == least])


class LeastRequests:
    """Choose the backend with the fewest requests in flight, ties at random."""

    name = "least_requests"

    def __init__(self, *, rng: Random | None = None) -> None:
        self._rng = rng or Random()

    def choose(self, query: Query, candidates: Sequence[Candidate]) -> Choice:
        """Choose the candidate with the fewest requests."""
        return Choice(draw_least_loaded(candidates, self._rng), "load")
