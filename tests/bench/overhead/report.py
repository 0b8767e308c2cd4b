"""Turn samples into the table, the JSON object and the verdict on the goals."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median

UNIT = {"sse": "chunk"}


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one workload through one proxy."""

    proxy: str
    workload: str
    cpu_us: float  # CPU microseconds of the proxy a request, or a chunk when streaming
    units: int  # requests, or chunks
    errors: int  # broken connections, answers other than 200, no answer
    lost: int  # requests that no engine saw, chunks that no client got
    twice: int  # requests that engines saw more than once
    load: dict[str, float]  # as the load generator printed it


@dataclass(frozen=True, slots=True)
class Goal:
    """An upper bound on the ratio of warmroute's cost to a peer's."""

    workload: str
    peer: str
    ratio: float


GOALS = (
    Goal("1k", "sglang-router", 0.45),
    Goal("32k", "sglang-router", 0.75),
    Goal("256k", "sglang-router", 1.0),
    Goal("sse", "vllm-router", 0.9),
)
IDLE_RSS_GOAL_MIB = 80.0


@dataclass(slots=True)
class Report:
    """Everything that was measured in one run."""

    proxies: Sequence[str]
    workloads: Sequence[str]
    samples: list[Sample] = field(default_factory=list)
    idle_mib: dict[str, float] = field(default_factory=dict)
    loaded_mib: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def cost(self, proxy: str, workload: str) -> float | None:
        """Return the median CPU microseconds, None when not measured."""
        costs = [s.cpu_us for s in self._of(proxy) if s.workload == workload]
        return median(costs) if costs else None

    def ratio(self, proxy: str, peer: str, workload: str) -> float | None:
        """Return the cost of *proxy* over that of *peer*."""
        cost, other = self.cost(proxy, workload), self.cost(peer, workload)
        return cost / other if cost is not None and other else None

    def faults(self) -> int:
        """Return all errors, losses and duplicates."""
        return sum(s.errors + s.lost + s.twice for s in self.samples)

    def table(self) -> str:
        """Return the figures for people: median cost, and ratio to nginx."""
        heads = [f"{w}, µs/{UNIT.get(w, 'req')}" for w in self.workloads]
        rows = [["proxy", *heads, "RSS idle", "loaded", "errors", "lost", "twice"]]
        rows += [self._row(p) for p in self.proxies if p not in self.skipped]
        lines = list(_aligned(rows))
        lines += [f"{name}: {note}" for name, note in self.notes.items()]
        lines += [f"{name}: skipped: {why}" for name, why in self.skipped.items()]
        return "\n".join(lines)

    def verdicts(self) -> list[tuple[bool, str]]:
        """Return whether each goal that could be judged is met, in words."""
        found = []
        for goal in GOALS:
            ratio = self.ratio("warmroute", goal.peer, goal.workload)
            if ratio is not None:
                text = (
                    f"{goal.workload}: {ratio:.2f}x {goal.peer}, at most {goal.ratio}x"
                )
                found.append((ratio <= goal.ratio, text))
        if "warmroute" in self.idle_mib:
            mib = self.idle_mib["warmroute"]
            text = f"idle RSS: {mib:.0f} MiB, at most {IDLE_RSS_GOAL_MIB:.0f}"
            found.append((mib <= IDLE_RSS_GOAL_MIB, text))
        return found

    def as_json(self) -> dict[str, object]:
        """Return all samples and the medians, for a file."""
        return asdict(self) | {
            "medians": {
                proxy: {w: self.cost(proxy, w) for w in self.workloads}
                for proxy in self.proxies
            },
            "goals": [{"met": met, "text": text} for met, text in self.verdicts()],
        }

    def _of(self, proxy: str) -> list[Sample]:
        return [s for s in self.samples if s.proxy == proxy]

    def _row(self, proxy: str) -> list[str]:
        mine = self._of(proxy)
        return [
            proxy,
            *(self._cell(proxy, workload) for workload in self.workloads),
            f"{self.idle_mib[proxy]:.0f} MiB",
            f"{self.loaded_mib[proxy]:.0f} MiB" if proxy in self.loaded_mib else "-",
            str(sum(s.errors for s in mine)),
            str(sum(s.lost for s in mine)),
            str(sum(s.twice for s in mine)),
        ]

    def _cell(self, proxy: str, workload: str) -> str:
        cost = self.cost(proxy, workload)
        ratio = self.ratio(proxy, "nginx", workload)
        shown = "-" if cost is None else f"{cost:.1f}"
        return shown if ratio is None else f"{shown} ({ratio:.2f}x)"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first = row[0].ljust(widths[0])
        rest = (cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))
        yield "  ".join([first, *rest])
