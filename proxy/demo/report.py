"""Print what the replays showed, as a table or as JSON."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict

from warmroute.proxy.demo.compare import Outcome

_COLUMNS: tuple[tuple[str, Callable[[Outcome], str]], ...] = (
    ("policy", lambda o: o.policy),
    ("requests", lambda o: str(o.requests)),
    ("errors", lambda o: str(len(o.errors))),
    ("prompt tokens", lambda o: f"{o.engine_queried_tokens:,}"),
    ("cached tokens", lambda o: f"{o.cached_tokens:,}"),
    ("hits counted", lambda o: f"{o.engine_hit_tokens:,}"),
    ("hit ratio", lambda o: f"{o.hit_ratio:.1%}"),
    ("foretold", lambda o: _share(o.predicted_ratio)),
    ("paid twice", lambda o: _share(o.paid_twice_ratio)),
    ("TTFT mean", lambda o: _ms(o.ttft_mean_s)),
    ("p50", lambda o: _ms(o.ttft_p50_s)),
    ("p99", lambda o: _ms(o.ttft_p99_s)),
    ("took", lambda o: f"{o.duration_s:.0f} s"),
    ("requests a backend", lambda o: _backends(o)),
)


def table(outcomes: Sequence[Outcome]) -> str:
    """Return one line a policy under a head of column names."""
    rows = [[name for name, _ in _COLUMNS]]
    rows += [[cell(outcome) for _, cell in _COLUMNS] for outcome in outcomes]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_COLUMNS))]
    lines = [
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return "\n".join(lines)


def verdict(outcomes: Sequence[Outcome]) -> str:
    """Say in words how the last policy compares with the first.

    Replays with failed requests did less work, so they are not compared.
    """
    lines = [_accounting(outcome) for outcome in outcomes]
    if len(outcomes) > 1:
        lines.append(_comparison(outcomes[0], outcomes[-1]))
    return "\n".join(lines)


def as_json(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as one JSON object."""
    rows = [{**asdict(outcome), "hit_ratio": outcome.hit_ratio} for outcome in outcomes]
    return json.dumps({"policies": rows}, indent=2)


def is_good(outcomes: Sequence[Outcome]) -> bool:
    """Tell whether every request was answered, and none twice."""
    return all(not o.errors and o.is_exactly_once for o in outcomes)


def _comparison(first: Outcome, last: Outcome) -> str:
    names = f"{last.policy} against {first.policy}"
    if not is_good((first, last)) or not first.engine_hit_tokens:
        return f"{names}: not comparable"
    hits = last.hit_ratio / first.hit_ratio
    ttft = last.ttft_mean_s / first.ttft_mean_s
    return f"{names}: {hits:.2f}x the hit ratio, {ttft:.2f}x the mean TTFT"


def _accounting(outcome: Outcome) -> str:
    finished = sum(outcome.finished.values())
    answered = outcome.requests - len(outcome.errors)
    line = (
        f"{outcome.policy}: {outcome.requests} sent, {answered} answered, "
        f"{finished} finished by the engines"
    )
    return "\n  ".join([line, *sorted(set(outcome.errors))[:5]])


def _backends(outcome: Outcome) -> str:
    return " ".join(f"{name}={count}" for name, count in outcome.finished.items())


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def _share(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1%}"
