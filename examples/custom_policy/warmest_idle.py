"""A routing policy of a third party: the warmest backend that is not busy."""

from collections.abc import Sequence
from typing import Annotated

from warmroute.policies.routing.base import Candidate, Choice, Limits, Query


class WarmestIdle:
    """Choose the longest match among those with few requests, else the fewest."""

    name = "warmest_idle"

    def __init__(
        self, *, few: Annotated[int, Limits(1, 1000), "requests that are few"] = 4
    ) -> None:
        self.few = few

    def choose(self, query: Query, candidates: Sequence[Candidate]) -> Choice:
        """Choose by match and load; the earlier of equals."""
        places = range(len(candidates))
        idle = [i for i in places if candidates[i].requests < self.few]
        if idle:
            best = max(idle, key=lambda i: candidates[i].matched_tokens)
            return Choice(best, "warmest")
        return Choice(min(places, key=lambda i: candidates[i].requests), "load")
