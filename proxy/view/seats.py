"""What is known of the data-parallel ranks of one backend, put together."""

from collections.abc import Sequence
from typing import Final

Facts = dict[str, object]

_SOURCES: Final = ("none", "mirror", "events")
_STATUSES: Final = ("degraded", "silent", "catching_up", "live")
_SUMS: Final = ("blocks", "gaps", "replays", "orphans")


def together(ranks: Sequence[Facts]) -> Facts:
    """Return the facts of a whole backend, with those of each rank as ``ranks``.

    Counts add up; of all else the worst rank speaks for the backend. One that has
    applied no message yet has a lower number than any other.
    """
    facts: Facts = {
        "source": _worst("source", ranks, _SOURCES),
        "seq": _lowest_seq(ranks),
        "incarnation": round(max(_number(one, "incarnation") for one in ranks)),
        "lag_s": max((_number(one, "lag_s") for one in ranks), default=0.0),
    }
    for name in _SUMS:
        if any(name in one for one in ranks):
            facts[name] = round(sum(_number(one, name) for one in ranks))
    if any("status" in one for one in ranks):
        facts["status"] = _worst("status", ranks, _STATUSES)
        facts["discount"] = min(_number(one, "discount", 1.0) for one in ranks)
    if all(one["lag_s"] is None for one in ranks):
        facts["lag_s"] = None
    return {**facts, "ranks": list(ranks)}


def _number(facts: Facts, name: str, default: float = 0.0) -> float:
    value = facts.get(name)
    return value if isinstance(value, int | float) else default


def _lowest_seq(ranks: Sequence[Facts]) -> int | None:
    numbers = [seq for one in ranks if isinstance(seq := one["seq"], int)]
    return min(numbers) if len(numbers) == len(ranks) else None


def _worst(name: str, ranks: Sequence[Facts], order: Sequence[str]) -> str:
    """Return the first one in *order* that some rank tells."""
    told = {one.get(name) for one in ranks}
    return next((one for one in order if one in told), order[0])
