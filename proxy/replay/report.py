"""Show what a replay gave: as a table to read, or as one JSON object."""

from collections.abc import Sequence
from typing import Any

from warmroute.proxy.replay.comparison import Outcome
from warmroute.proxy.replay.routed import backend_names
from warmroute.proxy.replay.setting import Setting
from warmroute.proxy.replay.tally import TPOT_OBJECTIVE_S, TTFT_OBJECTIVE_S
from warmroute.proxy.replay.trace import Trace

_HEAD = ("policy", "TTFT mean", "p50", "p90", "p99", "hit", "paid twice", "imbalance")


class Report:
    """What was replayed on what, and what came of it.

    Args:
        trace: The trace.
        setting: The fleet.
        routed: Outcomes of the policies.
        oracles: Outcomes of what no policy can beat, the pooled cache first.
    """

    __slots__ = ("_oracles", "_routed", "_setting", "_trace")

    def __init__(
        self,
        trace: Trace,
        setting: Setting,
        routed: Sequence[Outcome],
        oracles: Sequence[Outcome],
    ) -> None:
        self._trace = trace
        self._setting = setting
        self._routed = routed
        self._oracles = oracles

    def __repr__(self) -> str:
        return f"<Report of {len(self._routed)} policies on {self._trace.name}>"

    def as_object(self) -> dict[str, Any]:
        """Return everything for programs."""
        trace, setting = self._trace, self._setting
        return {
            "trace": {
                "requests": len(trace.requests),
                "prompt_tokens": trace.prompt_tokens,
                "block_size": trace.block_size,
                "duration_s": trace.duration_s,
            },
            "fleet": {
                "backends": setting.backends,
                "capacity_tokens": setting.capacity_tokens,
                "prefill_tokens_per_s": setting.prefill_rate,
            },
            "seeds": setting.seeds,
            "policies": [_entry(outcome) for outcome in self._routed],
            "oracles": [_entry(outcome) for outcome in self._oracles],
        }

    def as_text(self) -> str:
        """Return a table: a policy a line, then the oracles."""
        best = self._oracles[0].figures.ttft_mean_s
        rows = [_row(outcome, best) for outcome in (*self._routed, *self._oracles)]
        within = f"<={TTFT_OBJECTIVE_S:g}s"
        table = _table([(*_HEAD, within, "of pooled"), *rows])
        return "\n".join([*self._preface(), "", *table, "", *self._notes()])

    def _preface(self) -> list[str]:
        trace, setting = self._trace, self._setting
        tokens = trace.prompt_tokens
        seconds = trace.duration_s / setting.speed
        offered = ""
        if seconds:
            load = tokens / seconds / (setting.backends * setting.prefill_rate)
            offered = f", offered load without a cache {load:.2f}"
        return [
            f"{trace.name}: {len(trace.requests)} requests, {tokens} prompt tokens, "
            f"{trace.duration_s:.0f} s at speed {setting.speed:g}",
            f"{setting.backends} engines of {setting.capacity_tokens} tokens and "
            f"{setting.prefill_rate:g} tokens/s{offered}",
        ]

    def _notes(self) -> list[str]:
        notes = [
            f"within objectives: TTFT <= {TTFT_OBJECTIVE_S:g} s and "
            f"TPOT <= {1000 * TPOT_OBJECTIVE_S:g} ms",
            "oracles: one cache and one queue for all engines; no router has them",
        ]
        if self._setting.seeds > 1:
            notes.append(f"means over {self._setting.seeds} seeds, +- is 95 % of them")
        return notes


def _entry(outcome: Outcome) -> dict[str, Any]:
    figures = outcome.figures
    ttft: dict[str, float] = {
        "mean": figures.ttft_mean_s,
        "p50": figures.ttft_p50_s,
        "p90": figures.ttft_p90_s,
        "p99": figures.ttft_p99_s,
    }
    if outcome.ttft_mean_ci95_s is not None:
        ttft["mean_ci95"] = outcome.ttft_mean_ci95_s
    return {
        "policy": outcome.name,
        "requests": figures.requests,
        "ttft_s": ttft,
        "tpot_s": {"mean": figures.tpot_mean_s, "p99": figures.tpot_p99_s},
        "hit_ratio": figures.hit_ratio,
        "paid_twice_ratio": figures.paid_twice_ratio,
        "imbalance": figures.imbalance,
        "goodput": figures.goodput,
        "backends": [
            {"name": name, "requests": requests, "prefill_tokens": tokens}
            for name, requests, tokens in zip(
                backend_names(len(figures.backend_requests)),
                figures.backend_requests,
                figures.backend_prefill_tokens,
                strict=True,
            )
        ],
    }


def _row(outcome: Outcome, best_s: float) -> tuple[str, ...]:
    figures, spread = outcome.figures, outcome.ttft_mean_ci95_s
    mean = f"{figures.ttft_mean_s:.3f}"
    return (
        outcome.name,
        mean if spread is None else f"{mean} +-{spread:.3f}",
        f"{figures.ttft_p50_s:.3f}",
        f"{figures.ttft_p90_s:.3f}",
        f"{figures.ttft_p99_s:.3f}",
        f"{figures.hit_ratio:.1%}",
        f"{figures.paid_twice_ratio:.1%}",
        f"{figures.imbalance:.2f}",
        f"{figures.goodput:.1%}",
        f"{figures.ttft_mean_s / best_s:.2f}x",
    )


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
