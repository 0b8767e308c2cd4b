"""Decision records: why a request went where it went, and how it ended."""

from collections.abc import Sequence
from itertools import chain
from struct import Struct
from typing import Any, Final

from warmroute.policies.kv.blocks import TEXT_BLOCK_BYTES
from warmroute.policies.routing.base import Cost, Costs
from warmroute.proxy.ledger.flow import Flow
from warmroute.proxy.ledger.tokens import Classes, TokenClasses, classify

_MAX_TEXT: Final = 256
_RECORD_BYTES: Final = 640
_CANDIDATE_BYTES: Final = 64
_BLOCK_SIZE: Final = 16  # of an engine that does not tell; the view takes it so, too
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
        block_sizes: Tokens a block of each one's engine, same order as *names*;
            None where unknown, which is taken as 16.
        ranks: Data-parallel rank of each candidate, where its backend has several;
            such a backend is several candidates.
    """

    __slots__ = (
        *("_costs", "block_sizes", "candidates", "names", "pack_costs"),
        *("ranks", "record_bytes", "routable", "states", "views"),
    )

    def __init__(
        self,
        names: Sequence[str],
        states: Sequence[str],
        views: Sequence[str],
        routable: Sequence[int],
        block_sizes: Sequence[int | None] = (),
        ranks: Sequence[int | None] = (),
    ) -> None:
        self.names = tuple(names)
        self.states = tuple(states)
        self.views = tuple(views)
        self.routable = tuple(routable)
        self.candidates = tuple(self.names[at] for at in self.routable)
        sizes = block_sizes or [None] * len(self.names)
        self.block_sizes = tuple(sizes[at] or _BLOCK_SIZE for at in self.routable)
        self.ranks = tuple(ranks) or (None,) * len(self.routable)
        self._costs = Struct(f"{4 * len(self.routable)}d")
        self.pack_costs = self._costs.pack
        self.record_bytes = _RECORD_BYTES + _CANDIDATE_BYTES * len(self.routable)

    def unpack_costs(self, packed: bytes) -> Costs:
        """Return the costs of all candidates."""
        return Costs(self._costs.unpack(packed))

    def __repr__(self) -> str:
        return f"<Roster backends={len(self.names)} routable={len(self.routable)}>"


class Decision:
    """One routing decision and, once settled, its outcome.

    Costs stay packed, and classes of tokens plain, until somebody asks for them.

    Args:
        request_id: The client's X-Request-Id, or ours.
        time: Unix time of the decision.
        model: The model as the body names it.
        grade: exact, estimated or none.
        prompt_tokens: Ours at first; the engine's once settled, if reported.
            So are predicted tokens: scaled to that count once settled.
        matched: Tokens each candidate holds of the prompt, over all tiers; kept
            as it is, so it must not change any more.
        index: The chosen one's position among the candidates.
        costs: The policy's cost of each candidate, when it prices them.
        lower: (host, disk) tokens of each candidate, part of *matched*.
        bytes_per_token: Of the model, when the prompt's length was estimated.
    """

    __slots__ = (
        *("_bytes_per_token", "_costs", "_lower", "attempts", "cached_tokens"),
        *("chosen", "classes", "difference", "duration_s", "error", "flow", "grade"),
        "index",
        *("matched", "model", "output_tokens", "path", "policy"),
        *("predicted_tokens", "prompt_tokens", "queued_s", "reason", "request_id"),
        *("roster", "shadow", "size_bytes", "status", "time", "ttft_s"),
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
        bytes_per_token: float = 4.0,
    ) -> None:
        self.request_id = request_id
        self.time = time
        self.path = path if len(path) <= _MAX_TEXT else path[:_MAX_TEXT]
        if model is not None and len(model) > _MAX_TEXT:
            model = model[:_MAX_TEXT]
        self.model = model
        self.grade = grade
        self.prompt_tokens = prompt_tokens
        self.policy = policy
        self.roster = roster
        self.matched = matched
        self.index = index
        self.chosen = roster.candidates[index]
        self.predicted_tokens = matched[index]
        self.difference: str | None = None
        self.reason = reason
        self._costs: bytes | None = None
        if costs is not None:
            flat = costs.flat if type(costs) is Costs else chain.from_iterable(costs)
            self._costs = roster.pack_costs(*flat)
        self._lower = lower
        self._bytes_per_token = bytes_per_token
        size = roster.record_bytes + len(request_id) + len(self.path)
        self.size_bytes = size if model is None else size + len(model)
        self.attempts = 1
        self.queued_s: float | None = None
        self.shadow: tuple[str, int, Cost | None] | None = None
        self.flow: Flow | None = None
        self.status: int | None = None
        self.error: str | None = None
        self.cached_tokens: int | None = None
        self.output_tokens: int | None = None
        self.ttft_s: float | None = None
        self.duration_s: float | None = None
        self.classes: Classes | None = None

    @property
    def rank(self) -> int | None:
        """Return the chosen data-parallel rank, where the backend has several."""
        return self.roster.ranks[self.index]

    @property
    def tokens(self) -> TokenClasses | None:
        """Return the classes of the prompt's tokens, once an engine answered."""
        return None if self.classes is None else TokenClasses(*self.classes)

    def classify(self, seen: int, prompt_tokens: int | None) -> Classes:
        """Put the prompt's tokens into classes, by the engine's count if it told.

        Args:
            seen: Leading tokens that the fleet had seen before.
            prompt_tokens: The engine's count.
        """
        ours, predicted = self.prompt_tokens, self.predicted_tokens
        total = ours if prompt_tokens is None else prompt_tokens
        self.prompt_tokens = total
        best, slack = max(self.matched), 0
        block_size = self.roster.block_sizes[self.index]
        if self.grade == "estimated" and ours > 0:
            # Our counts are estimates in the same ratio to the engine's: without
            # the ratio, a wrong length would look like a wrong view.
            predicted = predicted * total // ours
            best = best * total // ours
            seen = seen * total // ours
            text_block = TEXT_BLOCK_BYTES / self._bytes_per_token
            slack = block_size + round(text_block * total / ours)
        # Engines compute the last token in any case, and cache whole blocks.
        most = (total - 1) // block_size * block_size if total > 0 else 0
        self.predicted_tokens = predicted = min(predicted, most)
        cached = predicted if self.cached_tokens is None else self.cached_tokens
        classes = classify(total, cached, predicted, best, seen, most, slack)
        self.classes = classes
        return classes

    @property
    def costs(self) -> Costs | None:
        """Return the cost of every candidate, if the policy priced them."""
        if self._costs is None:
            return None
        return self.roster.unpack_costs(self._costs)

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
            "chosen": self.chosen or None,
            "reason": self.reason,
            "candidates": self._candidates(),
            **({} if self.rank is None else {"rank": self.rank}),
        }

    def record(self) -> dict[str, Any]:
        """Return the decision as JSON; ``outcome`` is null until settled.

        ``queued_s`` is only there when the router had held the request, ``shadow``
        when a second policy was asked.
        """
        record = self.explained()
        if self.queued_s is not None:
            record["queued_s"] = self.queued_s
        if self.shadow is not None:
            policy, index, cost = self.shadow
            record["shadow"] = {
                "policy": policy,
                "chosen": self.roster.candidates[index],
                "cost": dict(zip(_COST_KEYS, cost or (None,) * 4, strict=True)),
                "matched_tokens": self.matched[index],
            }
        return {**record, "attempts": self.attempts, "outcome": self._end()}

    def _candidates(self) -> list[dict[str, Any]]:
        positions, costs = self._shown(), self.costs
        return [
            {
                "backend": name,
                "state": self.roster.states[at],
                "view": self.roster.views[at],
                "matched_tokens": self._tiers(positions.get(at)),
                "cost": _terms(costs, positions.get(at)),
            }
            for at, name in enumerate(self.roster.names)
        ]

    def _shown(self) -> dict[int, int]:
        """Return which candidate stands for each backend: the rank with the most.

        For the chosen one it is the rank that was chosen.
        """
        shown: dict[int, int] = {}
        routable, matched = self.roster.routable, self.matched
        for index, at in enumerate(routable):
            best = shown.setdefault(at, index)
            if matched[index] > matched[best]:
                shown[at] = index
        shown[routable[self.index]] = self.index
        return shown

    def _tiers(self, index: int | None) -> dict[str, int]:
        if index is None:
            return {"gpu": 0, "host": 0, "disk": 0}
        host, disk = self._lower[index] if self._lower else (0, 0)
        return {"gpu": self.matched[index] - host - disk, "host": host, "disk": disk}

    def _end(self) -> dict[str, Any] | None:
        if self.status is None:
            return None
        tokens = self.tokens
        return {
            "status": self.status,
            "error": self.error,
            "cached_tokens": self.cached_tokens,
            "predicted_tokens": self.predicted_tokens,
            "difference": self.difference,
            "output_tokens": self.output_tokens,
            "ttft_s": self.ttft_s,
            "duration_s": self.duration_s,
            "tokens": None if tokens is None else tokens._asdict(),
        }

    def __repr__(self) -> str:
        end = "open" if self.status is None else self.status
        return f"<Decision {self.request_id} {self.chosen} {self.reason} {end}>"


def _terms(costs: Sequence[Cost] | None, index: int | None) -> dict[str, float | None]:
    cost = None if costs is None or index is None else costs[index]
    return dict(zip(_COST_KEYS, cost or (None,) * 4, strict=True))
