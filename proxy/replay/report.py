"""Show what a replay gave: as a table to read, or as one JSON object."""

from collections.abc import Sequence
from typing import Any

import msgspec

from warmroute.proxy.replay.comparison import Outcome
from warmroute.proxy.replay.offered import offered_load
from warmroute.proxy.replay.routed import backend_names
from warmroute.proxy.replay.setting import Setting
from warmroute.proxy.replay.trace import Trace
from warmroute.proxy.replay.what_if import Answer

_HEAD = (
    *("policy", "TTFT mean", "p50", "p90", "p99", "TPOT ms", "e2e"),
    *("hit", "paid twice", "imbalance"),
)


class Report:
    """What was replayed on what, and what came of it.

    Args:
        trace: The trace.
        setting: The fleet.
        routed: Outcomes of the policies.
        oracles: Outcomes of what no policy can beat, the pooled cache first.
        answer: What was found out about other fleets.
    """

    __slots__ = ("_answer", "_oracles", "_routed", "_setting", "_trace")

    def __init__(
        self,
        trace: Trace,
        setting: Setting,
        routed: Sequence[Outcome],
        oracles: Sequence[Outcome],
        answer: Answer | None = None,
    ) -> None:
        self._answer = answer
        self._trace = trace
        self._setting = setting
        self._routed = routed
        self._oracles = oracles

    def __repr__(self) -> str:
        return f"<Report of {len(self._routed)} policies on {self._trace.name}>"

    def as_object(self) -> dict[str, Any]:
        """Return everything for programs."""
        shown = {
            "trace": self._trace_object(),
            "fleet": self._fleet_object(),
            "seeds": self._setting.seeds,
            "policies": [_entry(outcome) for outcome in self._routed],
            "oracles": [_entry(outcome) for outcome in self._oracles],
        }
        if self._answer is not None:
            shown["what_if"] = self._answer.as_object()
        return shown

    @property
    def title(self) -> str:
        """Say what was replayed on what."""
        return " · ".join(self._preface())

    @property
    def outcomes(self) -> list[Outcome]:
        """Return the policies, then the oracles."""
        return [*self._routed, *self._oracles]

    def _trace_object(self) -> dict[str, Any]:
        trace = self._trace
        shown = {
            "requests": len(trace.requests),
            "prompt_tokens": trace.prompt_tokens,
            "block_size": trace.block_size,
            "duration_s": trace.duration_s,
        }
        if trace.sessions:
            shown["sessions"] = len(trace.sessions)
        if trace.num_left_out:
            shown["left_out"] = trace.num_left_out
        return shown

    def _fleet_object(self) -> dict[str, Any]:
        setting = self._setting
        shown: dict[str, Any] = {
            "backends": setting.backends,
            "capacity_tokens": setting.capacity_tokens,
            "prefill_tokens_per_s": setting.prefill_rate,
        }
        if setting.batching is not None:
            shown["engine_model"] = "batching"
            shown["constants"] = msgspec.structs.asdict(setting.batching)
        if not setting.view.is_exact:
            shown["view"] = str(setting.view)
        return shown

    def as_text(self) -> str:
        """Return a table: a policy a line, then the oracles."""
        best = self._oracles[0].figures.ttft_mean_s
        rows = [_row(outcome, best) for outcome in self.outcomes]
        table = _table([(*_HEAD, "within", "of pooled"), *rows])
        return "\n".join([*self._preface(), "", *table, "", *self._notes()])

    def _preface(self) -> list[str]:
        trace, setting = self._trace, self._setting
        load = offered_load(trace, setting)
        offered = "" if load is None else f", offered load without a cache {load:.2f}"
        played = f"{trace.duration_s:.0f} s at speed {setting.speed:g}"
        if trace.sessions:
            at_once = min(setting.sessions, len(trace.sessions))
            played = f"{len(trace.sessions)} sessions, {at_once} at once"
        speed = f"{setting.prefill_rate:g} tokens/s"
        if setting.batching is not None:
            speed = f"steps of {setting.batching.max_batched_tokens} tokens at most"
        return [
            f"{trace.name}: {len(trace.requests)} requests, {trace.prompt_tokens} "
            f"prompt tokens, {played}",
            f"{setting.backends} engines of {setting.capacity_tokens} tokens and "
            f"{speed}{offered}",
        ]

    def _notes(self) -> list[str]:
        setting, left_out = self._setting, self._trace.num_left_out
        shared = "queue" if setting.batching is None else "memory"
        notes = [
            f"within objectives: TTFT <= {setting.ttft_slo_s:g} s and "
            f"TPOT <= {1000 * setting.tpot_slo_s:g} ms",
            f"oracles: one cache and one {shared} for all engines; no router has them",
        ]
        if left_out:
            notes.append(f"{left_out} requests were left out: failed, or too long")
        if not setting.view.is_exact:
            notes.append(f"view of the caches: {setting.view}; oracles know all")
        notes += [] if self._answer is None else self._answer.lines()
        if setting.seeds > 1:
            notes.append(f"means over {setting.seeds} seeds, +- is 95 % of them")
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
    entry: dict[str, Any] = {
        "policy": outcome.name,
        "requests": figures.requests,
        "ttft_s": ttft,
        "tpot_s": {"mean": figures.tpot_mean_s, "p99": figures.tpot_p99_s},
        "e2e_s": {"mean": figures.e2e_mean_s, "p99": figures.e2e_p99_s},
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
    if figures.lost:
        entry["lost"] = figures.lost
    return entry


def _row(outcome: Outcome, best_s: float) -> tuple[str, ...]:
    figures, spread = outcome.figures, outcome.ttft_mean_ci95_s
    mean = f"{figures.ttft_mean_s:.3f}"
    return (
        outcome.name,
        mean if spread is None else f"{mean} +-{spread:.3f}",
        f"{figures.ttft_p50_s:.3f}",
        f"{figures.ttft_p90_s:.3f}",
        f"{figures.ttft_p99_s:.3f}",
        f"{1000 * figures.tpot_mean_s:.1f}",
        f"{figures.e2e_mean_s:.2f}",
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
