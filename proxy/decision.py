"""Decision records: why a request went where it went, and how it ended."""

from collections.abc import Sequence
from itertools import chain
from struct import Struct
from typing import Any

from warmroute.proxy.flow import Flow
from warmroute.proxy.tokens import TokenClasses

Cost = tuple[float, float, float, float]

_MAX_TEXT = 256
_RECORD_BYTES = 520
_COST_KEYS = ("wait_s", "miss_s", "decode_s", "total_s")


class Roster:
    """The configured backends as one decision met them; shared by many.

    The router keeps one per model and builds a new one when the fleet or a
    view's source changes, so that a record holds a reference and no names.

    Args:
        names: Every configured backend.
        states: The state of each, same order.
        views: The source of each one's view: events, mirror or none.
        routable: Positions in *names* of the policy's candidates, in their order.
    """

    __slots__ = ("names", "pack_costs", "pack_counts", "routable", "states", "views")

    def __init__(
        self,
        names: Sequence[str],
        states: Sequence[str],
        views: Sequence[str],
        routable: Sequence[int],
    ) -> None:
        self.names = tuple(names)
        self.states = tuple(states)
        self.views = tuple(views)
        self.routable = tuple(routable)
        self.pack_costs = Struct(f"{4 * len(self.routable)}d")
        self.pack_counts = Struct(f"{len(self.routable)}q")

    def candidate(self, index: int) -> str:
        """Return the name of the policy's candidate number *index*."""
        return self.names[self.routable[index]]

    def __repr__(self) -> str:
        return f"<Roster backends={len(self.names)} routable={len(self.routable)}>"


class Decision:
    """One routing decision and, once settled, its outcome.

    Candidates stay as packed numbers until somebody asks for JSON.

    Args:
        request_id: The client's X-Request-Id, or ours.
        time: Unix time of the decision.
        model: The model as the body names it.
        grade: exact, estimated or none.
        prompt_tokens: Ours at first; the engine's once settled, if reported.
        matched: Tokens each candidate holds of the prompt, over all tiers.
        index: The chosen one's position among the candidates.
        costs: The policy's cost of each candidate, when it prices them.
        lower: (host, disk) tokens of each candidate, part of *matched*.
    """

    __slots__ = (
        *("_costs", "_lower", "_matched", "attempts", "best_tokens"),
        *("cached_tokens", "chosen"),
        *("duration_s", "error", "flow", "grade", "index", "model", "output_tokens"),
        *("path", "policy", "predicted_tokens", "prompt_tokens", "reason"),
        *("request_id", "roster", "status", "time", "tokens", "ttft_s"),
    )

    def __init__(
        self,
        request_id: str,
        time: float,
        path: str,
        model: str | None,
        grade: str,
        prompt_tokens: int,
        policy: str,
        roster: Roster,
        matched: Sequence[int],
        index: int,
        reason: str,
        costs: Sequence[Cost] | None = None,
        lower: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        self.request_id = request_id
        self.time = time
        self.path = path if len(path) <= _MAX_TEXT else path[:_MAX_TEXT]
        self.model = model if model is None else model[:_MAX_TEXT]
        self.grade = grade
        self.prompt_tokens = prompt_tokens
        self.policy = policy
        self.roster = roster
        self._matched = roster.pack_counts.pack(*matched)
        self.index = index
        self.chosen = roster.names[roster.routable[index]]
        self.predicted_tokens = matched[index]
        self.best_tokens = max(matched)
        self.reason = reason
        self._costs = (
            None
            if costs is None
            else roster.pack_costs.pack(*chain.from_iterable(costs))
        )
        self._lower = lower
        self.attempts = 1
        self.flow: Flow | None = None
        self.status: int | None = None
        self.error: str | None = None
        self.cached_tokens: int | None = None
        self.output_tokens: int | None = None
        self.ttft_s: float | None = None
        self.duration_s: float | None = None
        self.tokens: TokenClasses | None = None

    @property
    def matched(self) -> tuple[int, ...]:
        """Return the tokens that each candidate holds of the prompt."""
        return self.roster.pack_counts.unpack(self._matched)

    @property
    def is_settled(self) -> bool:
        """Return whether the outcome is known."""
        return self.status is not None

    @property
    def size_bytes(self) -> int:
        """Return about how much memory the record holds."""
        text = len(self.request_id) + len(self.path) + len(self.model or "")
        return _RECORD_BYTES + text + 5 * len(self._matched)

    def cost(self, index: int) -> Cost | None:
        """Return the cost of candidate *index*, if the policy priced it."""
        if self._costs is None:
            return None
        costs = self.roster.pack_costs.unpack(self._costs)
        wait, miss, decode, total = costs[4 * index : 4 * index + 4]
        return wait, miss, decode, total

    def explained(self) -> dict[str, Any]:
        """Return the decision as JSON, without an outcome."""
        return {
            "request_id": self.request_id,
            "time": self.time,
            "path": self.path,
            "model": self.model,
            "grade": self.grade,
            "prompt_tokens": self.prompt_tokens,
            "policy": self.policy,
            "chosen": self.chosen,
            "reason": self.reason,
            "candidates": self._candidates(),
        }

    def record(self) -> dict[str, Any]:
        """Return the decision as JSON; ``outcome`` is null until settled."""
        return {**self.explained(), "attempts": self.attempts, "outcome": self._end()}

    def _candidates(self) -> list[dict[str, Any]]:
        positions = {at: index for index, at in enumerate(self.roster.routable)}
        return [
            {
                "backend": name,
                "state": self.roster.states[at],
                "view": self.roster.views[at],
                "matched_tokens": self._tiers(positions.get(at)),
                "cost": self._terms(positions.get(at)),
            }
            for at, name in enumerate(self.roster.names)
        ]

    def _tiers(self, index: int | None) -> dict[str, int]:
        if index is None:
            return {"gpu": 0, "host": 0, "disk": 0}
        host, disk = self._lower[index] if self._lower else (0, 0)
        return {"gpu": self.matched[index] - host - disk, "host": host, "disk": disk}

    def _terms(self, index: int | None) -> dict[str, float | None]:
        cost = None if index is None else self.cost(index)
        return dict(zip(_COST_KEYS, cost or (None,) * 4, strict=True))

    def _end(self) -> dict[str, Any] | None:
        if self.status is None:
            return None
        return {
            "status": self.status,
            "error": self.error,
            "cached_tokens": self.cached_tokens,
            "predicted_tokens": self.predicted_tokens,
            "output_tokens": self.output_tokens,
            "ttft_s": self.ttft_s,
            "duration_s": self.duration_s,
            "tokens": self.tokens._asdict() if self.tokens else None,
        }

    def __repr__(self) -> str:
        end = "open" if self.status is None else self.status
        return f"<Decision {self.request_id} {self.chosen} {self.reason} {end}>"
