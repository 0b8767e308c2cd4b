"""Routing by expected cost against the best rule of others, cell by cell.

Replays the cells that docs/routing.md quotes and prints, for each and over all, what
``expected_ttft`` has of the other rule: ratios of times, points of goodput. Intervals
are 95 % over seeds. The traces are public: Mooncake's conversation trace (Apache-2.0,
kvcache-ai/Mooncake, FAST25-release/traces/conversation_trace.jsonl) and
kv-cache-tester's coding sessions (Apache-2.0, callanjfox/kv-cache-tester, packed a
session a line as docs/replay.md describes).

    python tests/bench/routing_cells.py --data DIR --seeds 4
    python tests/bench/routing_cells.py --data DIR --cells conversation --seeds 1
    python tests/bench/routing_cells.py --data DIR --cells "fifo 3M load 1.3"
"""

import argparse
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from statistics import fmean

from warmroute.proxy.replay.comparison import Comparison
from warmroute.proxy.replay.engine_constants import choose_constants
from warmroute.proxy.replay.figures import Figures, half_width
from warmroute.proxy.replay.offered import offered_load
from warmroute.proxy.replay.options import by_engine, named
from warmroute.proxy.replay.routed import backend_names
from warmroute.proxy.replay.setting import Setting
from warmroute.proxy.replay.trace import Trace
from warmroute.proxy.replay.traces import read_trace

JITTER_S = 3.0
POOLED = "oracle_pooled"

Read = Callable[[Figures], float]
RATIOS: dict[str, Read] = {
    "ttft": lambda run: run.ttft_mean_s,
    "p99": lambda run: run.ttft_p99_s,
    "tpot": lambda run: run.tpot_mean_s,
    "e2e": lambda run: run.e2e_mean_s,
}


@dataclass(frozen=True)
class Cell:
    """One fleet under one load: a share of what it can do, or sessions at once."""

    group: str
    capacity: int
    load: float

    def __str__(self) -> str:
        unit = (
            f"load {self.load:g}"
            if self.group != "agents"
            else f"{self.load:g} at once"
        )
        return f"{self.group} {self.capacity / 1e6:g}M {unit}"

    @property
    def trace(self) -> str:
        """Return which trace it plays."""
        return "agents" if self.group == "agents" else "conversation"

    def setting(self, trace: Trace, options: argparse.Namespace) -> Setting:
        """Return the fleet, with the speed that makes the load."""
        backends = options.backends
        whole = Setting(
            backends,
            self.capacity,
            jitter_s=JITTER_S,
            seeds=options.seeds,
            batching=(
                None
                if self.group == "fifo"
                else choose_constants(None, options.constant or ())
            ),
            slow=by_engine("--slow", options.slow, backend_names(backends)),
        )
        batching = whole.batching
        if trace.sessions:
            return replace(whole, jitter_s=0.0, sessions=int(self.load))
        load = offered_load(trace, whole)
        assert load is not None
        if batching is None:  # the trace at its own speed, as published figures have it
            return replace(whole, prefill_rate=whole.prefill_rate * load / self.load)
        return replace(whole, speed=self.load / load)


BATCHING = (
    Cell("conversation", 420_000, 0.7),
    Cell("conversation", 420_000, 0.9),
    Cell("conversation", 1_600_000, 0.9),
    Cell("conversation", 1_600_000, 1.1),
    Cell("agents", 420_000, 32),
    Cell("agents", 420_000, 56),
    Cell("agents", 1_600_000, 96),
    Cell("agents", 1_600_000, 144),
)
FIFO = tuple(
    Cell("fifo", capacity, load)
    for capacity in (10**6, 3 * 10**6)
    for load in (0.9, 1.3)
)
PEERS = ("weighted_scores", "overlap_cost", "cache_threshold", "explore_exploit")


def read_traces(data: Path, think_s: float) -> dict[str, Trace]:
    """Read both traces from the folder *data*."""
    found = {}
    for name, pattern in (
        ("conversation", "*conversation*.jsonl*"),
        ("agents", "agentic*.jsonl*"),
    ):
        path = next(iter(sorted(data.rglob(pattern))), None)
        if path is not None:
            found[name] = read_trace(str(path), most_think_s=think_s).indexed()
    return found


def batching_cells(
    cells: Sequence[Cell], traces: dict[str, Trace], options: argparse.Namespace
) -> None:
    """Print every cell against the other rule, then all of them together."""
    other = options.against
    over_all: dict[str, list[list[float]]] = {name: [] for name in (*RATIOS, "good")}
    for cell in cells:
        trace = traces[cell.trace]
        setting = cell.setting(trace, options)
        (theirs, ours), _ = Comparison(trace, setting).run(
            [other, options.policy], with_oracles=False
        )
        parts = []
        for name, read in RATIOS.items():
            ratios = [
                read(b) / read(a) for a, b in zip(theirs.runs, ours.runs, strict=True)
            ]
            over_all[name].append(ratios)
            parts.append(f"{name} {_mean(ratios)}")
        points = [
            100 * (b.goodput - a.goodput)
            for a, b in zip(theirs.runs, ours.runs, strict=True)
        ]
        over_all["good"].append(points)
        figures = ours.figures
        print(
            f"{cell!s:28} {'  '.join(parts)}  within {_mean(points, '+.1f')}   "
            f"[{figures.ttft_mean_s:.2f} s, {1000 * figures.tpot_mean_s:.0f} ms, "
            f"{figures.goodput:.1%}]",
            flush=True,
        )
    print(f"{options.policy} over {other}, all cells:")
    for name, rows in over_all.items():
        by_seed = list(zip(*rows, strict=True))
        if name == "good":
            print(f"  within objectives {_mean([fmean(s) for s in by_seed], '+.2f')}")
        else:
            means = [exp(fmean(map(log, one))) for one in by_seed]
            print(f"  {name} {_mean(means)}, worst cell {max(map(fmean, rows)):.2f}")


def fifo_cells(
    cells: Sequence[Cell], trace: Trace, options: argparse.Namespace
) -> None:
    """Print the mean TTFT over that of the best peer, and of the pooled oracle."""
    for cell in cells:
        setting = cell.setting(trace, options)
        routed, oracles = Comparison(trace, setting).run(
            [*PEERS, "round_robin", "least_tokens", options.policy]
        )
        ours, peers = routed[-1], routed[: len(PEERS)]
        best = min(peers, key=lambda one: one.figures.ttft_mean_s)
        pooled = next(one for one in oracles if one.name == POOLED)
        shown = []
        for other in (best, pooled):
            ratios = [
                mine.ttft_mean_s / run.ttft_mean_s
                for mine, run in zip(ours.runs, other.runs, strict=True)
            ]
            shown.append(f"{_mean(ratios)} of {other.name}")
        print(
            f"{cell!s:20} {ours.figures.ttft_mean_s:7.2f} s  {'  '.join(shown)}   "
            + "  ".join(
                f"{one.name} {one.figures.ttft_mean_s:.2f}"
                for one in (*routed[:-1], *oracles)
            ),
            flush=True,
        )


def _mean(values: Sequence[float], form: str = ".3f") -> str:
    spread = half_width(values)
    shown = format(fmean(values), form)
    return shown if spread is None else f"{shown} +-{format(spread, form.lstrip('+'))}"


def main() -> int:
    """Replay the cells that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder with both traces")
    add("--cells", default="conversation,agents,fifo", help="groups, or parts of names")
    add("--seeds", type=int, default=4)
    add("--backends", type=int, default=8)
    add("--policy", default="expected_ttft")
    add("--against", default="weighted_scores")
    add("--max-think", type=float, default=300.0)
    add("--constant", action="append", type=named("=", 1e12), help="NAME=VALUE")
    add("--slow", action="append", type=named("=", 1000.0), help="engine-0=2")
    options = parser.parse_args()
    started = time.monotonic()
    traces = read_traces(options.data, options.max_think)
    wanted = options.cells.split(",")
    batching, fifo = (
        [
            cell
            for cell in group
            if cell.trace in traces and any(one in str(cell) for one in wanted)
        ]
        for group in (BATCHING, FIFO)
    )
    if batching:
        batching_cells(batching, traces, options)
    if fifo:
        fifo_cells(fifo, traces["conversation"], options)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{time.monotonic() - started:.0f} s, {peak_mib:.0f} MiB at most")
    return 0


if __name__ == "__main__":
    sys.exit(main())
