"""Choose the backends in turn."""

from __future__ import annotations

from collections.abc import Sequence

from warmroute.policies.routing.base import Candidate, Choice, Query

_MAX_NAMES = 4096


class RoundRobin:
    """Choose the backend whose last turn is longest ago, the first one first.

    Turns go by name, not by place, so the order stays fair when backends come
    and go and when requests for several models alternate. O(candidates).
    """

    name = "round_robin"

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}
        self._turn = 0

    def choose(self, query: Query, candidates: Sequence[Candidate]) -> Choice:
        """Choose the candidate that has waited longest for a turn."""
        last = self._turns.get
        turns = [last(one.name, 0) for one in candidates]
        index = turns.index(min(turns))
        self._turn += 1
        self._turns[candidates[index].name] = self._turn
        if len(self._turns) > _MAX_NAMES:
            self._forget_oldest_half()
        return Choice(index, "round_robin")

    def _forget_oldest_half(self) -> None:
        newest = self._turn - _MAX_NAMES // 2
        self._turns = {k: v for k, v in self._turns.items() if v > newest}
