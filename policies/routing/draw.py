"""What scoring policies share: the draw among equals and the word for a choice."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from warmroute.policies.routing.candidate import Candidate


def draw_least(values: Sequence[float], rng: Random) -> int:
    """Return the place of the least of *values*, ties at random."""
    least = min(values)
    if values.count(least) == 1:
        return values.index(least)
    return rng.choice([i for i, value in enumerate(values) if value == least])


def name_reason(index: int, candidates: Sequence[Candidate]) -> str:
    """Return ``prefix`` if nobody has a longer match than *index*, else ``load``."""
    matched = candidates[index].matched_tokens
    if matched and matched == max([one.matched_tokens for one in candidates]):
        return "prefix"
    return "load"
