"""Set what was measured against what was predicted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from live import Measured
from loads import Load
from predicted import PLAYS, figures

Figures = Mapping[str, float]

COMPARED = ("hit_ratio", "ttft_mean_s", "ttft_p50_s", "ttft_p99_s", "e2e_mean_s")
ALLOWED = 0.25
# Policies that are measured closer to each other than this have no order.
_APART = 0.05


@dataclass(slots=True)
class Result:
    """What came of one load.

    Attributes:
        load: The load.
        measured: Figures of each policy, in the order played.
        notes: For each policy, requests, failures and how long it took.
        predicted: By where the prediction came from, figures of each policy.
    """

    load: Load
    measured: dict[str, Figures] = field(default_factory=dict)
    notes: dict[str, dict[str, Any]] = field(default_factory=dict)
    predicted: dict[str, Mapping[str, Figures]] = field(default_factory=dict)

    def add(self, policy: str, run: Measured) -> None:
        """Take in one live run."""
        good = [one for one in run.answers if one.ttft_s is not None]
        self.notes[policy] = {
            "requests": len(run.answers),
            "finished": sum(run.finished_of_each),
            "errors": sorted({one.error for one in run.answers if one.error}),
            "took_s": run.duration_s,
            "of_each_engine": list(run.finished_of_each),
            "hit_ratio_of_answers": sum(one.cached_tokens for one in good)
            / max(1, sum(one.prompt_tokens for one in good)),
        }
        if not good:
            raise SystemExit(f"nothing was answered: {self.notes[policy]['errors']}")
        found = figures(
            [one.ttft_s for one in good if one.ttft_s is not None],
            [one.duration_s for one in good],
            [one.prompt_tokens for one in good],
            [one.cached_tokens for one in good],
            run.paid_twice_ratio,
            self.load.system_tokens,
        )
        found["hit_ratio"] = run.hit_tokens / max(1, run.queried_tokens)
        self.measured[policy] = found

    @property
    def is_whole(self) -> bool:
        """Tell whether every request was answered, and none twice."""
        return all(
            not one["errors"] and one["finished"] == one["requests"]
            for one in self.notes.values()
        )

    def errors(self, source: str) -> dict[str, dict[str, float]]:
        """Return predicted over measured, less 1, of each policy and figure."""
        return {
            policy: {
                name: self.predicted[source][policy][name] / found[name] - 1
                for name in COMPARED
            }
            for policy, found in self.measured.items()
        }

    def inversions(self, source: str, name: str) -> list[tuple[str, str]]:
        """Return the pairs of policies that the prediction has the wrong way round.

        Pairs that are measured within 5 % have no order.
        """
        told, wrong = self.predicted[source], []
        for one, two in combinations(self.measured, 2):
            real = self.measured[one][name] / self.measured[two][name]
            said = told[one][name] / told[two][name]
            if not 1 / (1 + _APART) < real < 1 + _APART and (real > 1) != (said > 1):
                wrong.append((one, two))
        return wrong

    def as_object(self) -> dict[str, Any]:
        """Return everything for programs."""
        return {
            "load": self.load.name,
            "what": self.load.what,
            "system_tokens": self.load.system_tokens,
            "measured": self.measured,
            "runs": self.notes,
            "predicted": {
                source: {
                    "figures": told,
                    "error": self.errors(source),
                    "wrong_order": {
                        name: self.inversions(source, name) for name in COMPARED
                    },
                }
                for source, told in self.predicted.items()
            },
        }

    def as_text(self) -> str:
        """Return tables: what was measured, then each prediction beside it."""
        lines = [f"{self.load.name}: {self.load.what}", ""]
        lines += _table(_HEAD, [self._row(policy) for policy in self.measured])
        for source in self.predicted:
            lines += ["", f"predicted from {source} / measured:"]
            rows = [self._compared(source, policy) for policy in self.measured]
            lines += _table(("", *_NAMES.values()), rows)
            lines += [*self._spread(source), self._verdict(source)]
        for policy, note in self.notes.items():
            if note["errors"] or note["finished"] != note["requests"]:
                lines.append(f"{policy}: {note}")
        return "\n".join(lines)

    def _row(self, policy: str) -> tuple[str, ...]:
        found = self.measured[policy]
        return (
            policy,
            f"{found['hit_ratio']:.1%}",
            f"{found['system_hit_ratio']:.1%}",
            f"{found['paid_twice_ratio']:.1%}",
            *(_shown(name, found[name]) for name in COMPARED[1:]),
            "/".join(map(str, self.notes[policy]["of_each_engine"])),
        )

    def _compared(self, source: str, policy: str) -> tuple[str, ...]:
        told, errors = self.predicted[source][policy], self.errors(source)[policy]
        cells = [
            f"{_shown(name, told[name])} / {_shown(name, self.measured[policy][name])} "
            f"({errors[name]:+.0%})"
            for name in COMPARED
        ]
        return (policy, *cells)

    def _spread(self, source: str) -> list[str]:
        """Return how far apart the plays were whose means the prediction is."""
        ends = [
            f"{policy} {least:.2f} to {told['most_ttft_mean_s']:.2f}"
            for policy, told in self.predicted[source].items()
            if (least := told.get("least_ttft_mean_s")) is not None
        ]
        return [f"TTFT mean of {PLAYS} plays: {', '.join(ends)} s"] if ends else []

    def _verdict(self, source: str) -> str:
        errors = [one for row in self.errors(source).values() for one in row.values()]
        within = sum(abs(one) <= ALLOWED for one in errors)
        wrong = {
            name: pairs for name in COMPARED if (pairs := self.inversions(source, name))
        }
        order = (
            "order agrees"
            if not wrong
            else "wrong order: "
            + "; ".join(
                f"{_NAMES[name]} of {one} and {two}"
                for name, pairs in wrong.items()
                for one, two in pairs
            )
        )
        return f"{within} of {len(errors)} within {ALLOWED:.0%}; {order}"


_HEAD = (
    *("policy", "hit", "of the system prompt", "paid twice"),
    *("TTFT mean", "p50", "p99", "e2e mean", "requests"),
)
_NAMES = dict(zip(COMPARED, ("hit", "TTFT mean", "p50", "p99", "e2e"), strict=True))


def _shown(name: str, value: float) -> str:
    return f"{value:.1%}" if name == "hit_ratio" else f"{value:.3f} s"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, *rows)
    ]
