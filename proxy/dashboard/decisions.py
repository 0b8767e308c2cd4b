"""The newest decisions in short, for a list that grows while one looks at it."""

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from warmroute.proxy.ledger.decision import Decision

MAX_DECISIONS: Final = 60


def brief(decision: Decision) -> dict[str, Any]:
    """Return one line of a decision; all of it is at its own address."""
    tokens = decision.tokens
    return {
        "request_id": decision.request_id,
        "time": decision.time,
        "model": decision.model,
        "chosen": decision.chosen or None,
        "reason": decision.reason,
        "grade": decision.grade,
        "prompt_tokens": decision.prompt_tokens,
        "predicted_tokens": decision.predicted_tokens,
        "cached_tokens": decision.cached_tokens,
        "attempts": decision.attempts,
        "status": decision.status,
        "ttft_s": decision.ttft_s,
        "tokens": None if tokens is None else tokens._asdict(),
    }


class Newest:
    """Tell each of the newest decisions when it is made and when it has ended.

    Of more than 60 in one look the oldest are left out.
    """

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: dict[Decision, int | None] = {}

    def __repr__(self) -> str:
        return f"<Newest [Told: {len(self._told)}]>"

    def look(self, newest: Iterable[Decision]) -> list[dict[str, Any]]:
        """Return what has changed since the last look, oldest first."""
        window = list(islice(newest, MAX_DECISIONS))
        told = self._told
        fresh = [one for one in window if one not in told or told[one] != one.status]
        self._told = {one: one.status for one in window}
        return [brief(one) for one in reversed(fresh)]

    def all(self) -> list[dict[str, Any]]:
        """Return the decisions of the last look, oldest first."""
        return [brief(one) for one in reversed(self._told)]
