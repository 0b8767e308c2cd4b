"""Print what tracing adds to the CPU time of a whole request of 1 KB.

Run: python tests/bench/tracing/whole_request.py [--rounds N] [--requests N]

Real sockets, the mock engines and the load of tests/bench/overhead, and a collector in
another process. warmroute is that of --python: .venv-compiled when `make` made it.
"""

import argparse
import math
import random
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Client
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parents[1] / "overhead"))

from bodies import WORKLOADS
from peers import PROXIES, Site
from run import COMPILED, Bench, cores, describe, free_port, start_proxy, stop
from switched_proxy import FLUSH

Costs = dict[str, list[float]]

ALLOWED = 1.10
SPANS_A_TRACE = 3
WARM_UP = 3  # rounds that are not counted
CONNECTIONS = 16  # each is new in a turn, and its first requests cost more
SHARES: dict[str, float | None] = {
    "off": None,
    "off again": None,
    "0 %": 0.0,
    "5 %": 0.05,
    "100 %": 1.0,
}
HERE = Path(__file__).parent
# The mock engines know nothing of what was evicted: the truth loop's mispredictions are
# none, and to keep them would be more than the share.
TRACING = """\
tracing: {{endpoint: "{url}", mispredicted_tokens: 1000000}}
"""


class Collector:
    """The counting collector, in a process of its own."""

    def __init__(self, stack: ExitStack) -> None:
        process = subprocess.Popen(
            [sys.executable, HERE / "collector.py"],
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


class Proxy:
    """One warmroute that is switched from one share of sampling to another.

    Attributes:
        faults: Errors, losses and duplicates so far.
    """

    def __init__(
        self, bench: Bench, url: str, python: Path, core: int | None, stack: ExitStack
    ) -> None:
        self._bench = bench
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "proxy"
        PROXIES["switched"] = _switched(url)
        site = Site(folder, free_port(), free_port(), bench.engine_ports, python)
        self._tree, self._port = start_proxy("switched", bench, site, core, stack)
        self._control = stack.enter_context(Client(str(folder / "control")))
        self._exporters = {name: self._switch(name) for name in SHARES}
        self.faults = 0

    def turn(self, name: str, requests: int) -> float:
        """Send some requests; return the CPU us of one, but for the exporters'."""
        self._switch(name)
        before = self._serving_ns()
        workload = replace(
            WORKLOADS[0], seconds=60.0, requests=requests, connections=CONNECTIONS
        )
        sample = self._bench.measure(name, self._port, None, workload)
        self.faults += sample.errors + sample.lost + sample.twice
        return (self._serving_ns() - before) / 1000 / requests

    def export_us(self) -> dict[str, float]:
        """Return the CPU time that the export of each share has taken so far."""
        spent_ns = self._tree.thread_ns()
        return {
            name: 0.0 if thread is None else spent_ns[thread] / 1000
            for name, thread in self._exporters.items()
        }

    def flush(self) -> None:
        """Send what waits for a full batch."""
        self._control.send(FLUSH)
        self._control.recv()

    def _serving_ns(self) -> int:
        exporters = self._exporters.values()
        spent_ns = self._tree.thread_ns().items()
        return sum(ns for thread, ns in spent_ns if thread not in exporters)

    def _switch(self, name: str) -> int | None:
        self._control.send(SHARES[name])
        thread: int | None = self._control.recv()
        return thread


def _switched(url: str) -> Callable[[Site], list[str]]:
    plain = PROXIES["warmroute"]

    def command(site: Site) -> list[str]:
        plain(site)
        config = site.folder / "warmroute.yaml"
        with config.open("a") as file:
            file.write(TRACING.format(url=url))
        program = HERE / "switched_proxy.py"
        return [str(site.python), *map(str, (program, config, site.folder / "control"))]

    return command


def measure(proxy: Proxy, rounds: int, requests: int) -> Costs:
    """Return the CPU us a request by share, one a round, in an order drawn for each.

    The export comes in lumps, in whatever turn is on when a batch is full: its threads
    are weighed over the whole run, and each share's turns bear their part of its own.
    """
    costs: Costs = {name: [] for name in SHARES}
    exported = proxy.export_us()
    for number in range(-WARM_UP, rounds):
        if number == 0:
            exported = proxy.export_us()
        for name in random.Random(number).sample([*SHARES], len(SHARES)):
            cost = proxy.turn(name, requests)
            if number >= 0:
                costs[name].append(cost)
    for name, until_us in proxy.export_us().items():
        lump_us = (until_us - exported[name]) / (rounds * requests)
        costs[name] = [cost + lump_us for cost in costs[name]]
    return costs


def ratio(costs: Costs, name: str, base: Sequence[str]) -> tuple[float, float, float]:
    """Return what *name* costs by *base*, with its 95 % interval, rounds drawn anew."""
    logs = [
        math.log(cost) - fmean(math.log(costs[off][at]) for off in base)
        for at, cost in enumerate(costs[name])
    ]
    draw = random.Random(1)
    drawn = sorted(_middle(draw.choices(logs, k=len(logs))) for _ in range(2000))
    return math.exp(_middle(logs)), math.exp(drawn[50]), math.exp(drawn[-51])


def _middle(values: Sequence[float]) -> float:
    """Return the mean without the lowest and the highest tenth."""
    cut = len(values) // 10
    return fmean(sorted(values)[cut : len(values) - cut])


def report(costs: Costs, kept: float, faults: int) -> int:
    """Print cost and ratios; return 1 where 5 % costs too much, or much was lost."""
    off_us = _middle([*costs["off"], *costs["off again"]])
    print(f"off       {off_us:.1f} us a request")
    five = math.inf
    for name in [*SHARES][1:]:
        base = ["off"] if name == "off again" else ["off", "off again"]
        middle, low, high = ratio(costs, name, base)
        more_us = (middle - 1) * off_us
        print(f"{name:9} x {middle:.3f} ({low:.3f} to {high:.3f}), {more_us:+.2f} us")
        if name == "5 %":
            five = middle
    print(f"{kept:.1%} of the traces reached the collector")
    print(f"{faults} errors, losses and duplicates")
    return 0 if five <= ALLOWED and not faults else 1


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=250)
    parser.add_argument("--requests", type=int, default=1000, help="of a turn")
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
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        load_core, proxy_core = cores()
        bench = Bench(folder, stack, load_core)
        collector = Collector(stack)
        proxy = Proxy(bench, collector.url, options.python, proxy_core, stack)
        costs = measure(proxy, options.rounds, options.requests)
        proxy.flush()
        traces = collector.num_spans() / SPANS_A_TRACE
    print(f"warmroute: {describe(options.python)}")
    num_turns = options.requests * (options.rounds + WARM_UP)
    kept = traces / num_turns / sum(share or 0.0 for share in SHARES.values())
    return report(costs, kept, proxy.faults)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
