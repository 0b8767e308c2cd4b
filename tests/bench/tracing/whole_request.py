"""Print what tracing adds to the CPU time of a whole request of 1 KB.

Run: python tests/bench/tracing/whole_request.py [--rounds N] [--seconds S]

Real sockets, the mock engines and the load of tests/bench/overhead, and a collector in
another process. warmroute is that of --python: .venv-compiled when `make` made it.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "onlookers"))
sys.path.insert(0, str(Path(__file__).parents[1] / "overhead"))

from bodies import WORKLOADS
from cost import interval
from peers import PROXIES, Site
from process_tree import ProcessTree
from run import COMPILED, Bench, cores, describe, free_port, start_proxy, stop

ALLOWED = 1.10
SPANS_A_TRACE = 3
SHARES: dict[str, float | None] = {"off": None, "0 %": 0.0, "5 %": 0.05, "100 %": 1.0}
# The mock engines know nothing of what was evicted: the truth loop's mispredictions are
# none, and to keep them would be more than the share.
TRACING = """\
tracing: {{endpoint: "{url}", sample: {share}, mispredicted_tokens: 1000000}}
"""
# What waits is sent this soon, to be weighed with the requests that it tells of. Under
# load a batch is full sooner anyhow.
DELAY_S = 0.5


class Collector:
    """The counting collector, in a process of its own."""

    def __init__(self, stack: ExitStack) -> None:
        process = subprocess.Popen(
            [sys.executable, Path(__file__).parent / "collector.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(process.communicate)
        assert process.stdout is not None
        self.url = f"http://127.0.0.1:{int(process.stdout.readline())}"

    def num_spans(self) -> int:
        """Return how many spans have arrived."""
        with urllib.request.urlopen(f"{self.url}/spans", timeout=10) as answer:
            return int(answer.read())


@dataclass(frozen=True, slots=True)
class Turn:
    """One run of the load through one variant."""

    cpu_us: float  # of all threads of the proxy, a request
    requests: int
    traces: int  # that reached the collector
    faults: int  # errors, losses and duplicates


class Fleet:
    """A warmroute without tracing, and one for each share of sampling."""

    def __init__(
        self,
        bench: Bench,
        collector: Collector,
        python: Path,
        core: int | None,
        stack: ExitStack,
    ) -> None:
        self._bench = bench
        self._collector = collector
        self._workload = WORKLOADS[0]
        self._running: dict[str, tuple[ProcessTree, int]] = {}
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for number, (name, share) in enumerate(SHARES.items()):
            PROXIES[name] = _traced(share, collector.url)
            ports = free_port(), free_port()
            site = Site(folder / str(number), *ports, bench.engine_ports, python)
            self._running[name] = start_proxy(name, bench, site, core, stack)

    def turn(self, name: str, seconds: float) -> Turn:
        """Send the load through a variant, and wait for its export."""
        tree, port = self._running[name]
        spans, cpu_ns = self._collector.num_spans(), tree.cpu_ns()
        workload = self._workload.shortened(seconds)
        sample = self._bench.measure(name, port, None, workload)
        time.sleep(3 * DELAY_S)
        cpu_ns = tree.cpu_ns() - cpu_ns
        return Turn(
            cpu_us=cpu_ns / 1000 / max(sample.units, 1),
            requests=sample.units,
            traces=(self._collector.num_spans() - spans) // SPANS_A_TRACE,
            faults=sample.errors + sample.lost + sample.twice,
        )


def _traced(share: float | None, url: str) -> Callable[[Site], list[str]]:
    plain = PROXIES["warmroute"]

    def command(site: Site) -> list[str]:
        started = plain(site)
        if share is not None:
            with (site.folder / "warmroute.yaml").open("a") as config:
                config.write(TRACING.format(url=url, share=share))
        return started

    return command


def measure(fleet: Fleet, rounds: int, seconds: float) -> dict[str, list[Turn]]:
    """Return turns by variant, one a round, in an order drawn for each round."""
    turns: dict[str, list[Turn]] = {name: [] for name in SHARES}
    for name in SHARES:  # warm-up, not counted
        fleet.turn(name, min(seconds, 0.5))
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        for name in random.Random(number).sample([*SHARES], len(SHARES)):
            turns[name].append(fleet.turn(name, seconds))
    return turns


def report(turns: dict[str, list[Turn]]) -> int:
    """Print cost and ratios; return 1 where 5 % costs too much, or much was lost."""
    base = [turn.cpu_us for turn in turns["off"]]
    print(f"off    {median(base):.1f} us a request")
    for name, some in turns.items():
        if name == "off":
            continue
        costs = [turn.cpu_us for turn in some]
        ratios = [one / off for one, off in zip(costs, base, strict=True)]
        middle, low, high = interval(ratios)
        more = median(one - off for one, off in zip(costs, base, strict=True))
        kept = sum(turn.traces for turn in some) / sum(turn.requests for turn in some)
        print(
            f"{name:6} x {middle:.3f} ({low:.3f} to {high:.3f}), +{more:.2f} us;"
            f" {kept:.2%} of the requests reached the collector"
        )
    faults = sum(turn.faults for some in turns.values() for turn in some)
    print(f"{faults} errors, losses and duplicates")
    five = [turn.cpu_us / off for turn, off in zip(turns["5 %"], base, strict=True)]
    return 0 if median(five) <= ALLOWED and not faults else 1


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0, help="a turn's length")
    parser.add_argument(
        "--python",
        type=Path,
        default=COMPILED if COMPILED.exists() else Path(sys.executable),
        help="interpreter that has the warmroute to measure (default: %(default)s)",
    )
    return parser.parse_args()


def main() -> int:
    """Run the bench."""
    options = parse()
    signal.signal(signal.SIGTERM, stop)
    os.environ["OTEL_BSP_SCHEDULE_DELAY"] = str(round(DELAY_S * 1000))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        load_core, proxy_core = cores()
        bench = Bench(folder, stack, load_core)
        collector = Collector(stack)
        fleet = Fleet(bench, collector, options.python, proxy_core, stack)
        turns = measure(fleet, options.rounds, options.seconds)
    print(f"warmroute: {describe(options.python)}")
    return report(turns)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
