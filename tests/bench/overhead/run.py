"""Measure the CPU cost of proxies side by side, against a mock engine.

Usage: python tests/bench/overhead/run.py [--quick] [--reps N] [--json FILE]

warmroute is that of --python: .venv-compiled when `make` made it, else this one.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import NoReturn

from bodies import WORKLOADS, Workload, write_bodies
from peers import DEFAULT_PROXIES, PROXIES, Site, Unavailable, is_compiled
from process_tree import ProcessTree, pin
from report import Report, Sample

NUM_ENGINES = 8
READY_TIMEOUT_S = 60.0
HERE = Path(__file__).parent
COMPILED = HERE.parents[2] / ".venv-compiled" / "bin" / "python"
PROBE = b'{"model":"mock","messages":[{"role":"user","content":"hello"}]}'


def compile_tool(name: str, folder: Path) -> Path:
    """Compile one of the C programs into *folder*."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        sys.exit("no C compiler; on Debian: apt-get install gcc libc6-dev")
    program = folder / name
    source = str(HERE / f"{name}.c")
    subprocess.run([compiler, "-O2", "-Wall", "-o", str(program), source], check=True)
    return program


def free_port() -> int:
    """Return a loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Bench:
    """The mock engines and the load generator, on a core of their own."""

    def __init__(self, folder: Path, stack: ExitStack, core: int | None):
        pin(core)
        self._folder = folder
        self._load = compile_tool("load", folder)
        self._next_id = 0
        engine = subprocess.Popen(
            [compile_tool("engine", folder), str(NUM_ENGINES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        # It ends when its standard input does, so even if this process is killed.
        stack.callback(engine.communicate)
        assert engine.stdout is not None
        self.engine_ports: list[int] = json.loads(engine.stdout.readline())

    def stats(self) -> dict[str, int]:
        """Return what the engines have seen so far."""
        url = f"http://127.0.0.1:{self.engine_ports[0]}/stats"
        with urllib.request.urlopen(url, timeout=10) as answer:
            seen: dict[str, int] = json.load(answer)
            return seen

    def load(self, port: int, workload: Workload) -> dict[str, float]:
        """Send *workload* to *port* and return what the generator counted."""
        path = self._folder / f"{workload.name}-{workload.chunks}"
        if not path.exists():
            write_bodies(workload, path)
        arguments = [
            port,
            workload.connections,
            workload.deadline_s,
            workload.max_requests,
            path,
            self._next_id,
            workload.ramp_us,
        ]
        done = subprocess.run(
            [self._load, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=workload.deadline_s + 60,
            check=True,
        )
        counted: dict[str, float] = json.loads(done.stdout)
        self._next_id += int(counted["issued"])
        return counted

    def measure(
        self, name: str, port: int, tree: ProcessTree | None, workload: Workload
    ) -> Sample:
        """Run *workload* once; without a tree its CPU time is not known: 0."""
        before, cpu = self.stats(), tree.cpu_ns() if tree else 0
        load = self.load(port, workload)
        cpu = (tree.cpu_ns() if tree else 0) - cpu
        after = self.stats()
        seen = {key: after[key] - before[key] for key in after}
        units = int(load["chunks"] if workload.chunks else load["ok"])
        return Sample(
            proxy=name,
            workload=workload.name,
            cpu_us=cpu / 1000 / max(units, 1),
            units=units,
            errors=int(load["errors"] + load["refused"] + load["unanswered"]),
            lost=int(
                load["issued"] - seen["distinct"] + seen["chunks"] - load["chunks"]
            ),
            twice=seen["posts"] - seen["distinct"],
            load=load,
        )


def is_answering(port: int) -> bool:
    """Tell whether a completion gets through."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        data=PROBE,
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def start_proxy(
    name: str, bench: Bench, site: Site, core: int | None, stack: ExitStack
) -> tuple[ProcessTree, int]:
    """Start a proxy and wait until it answers; return it and its port."""
    site.folder.mkdir()
    tree = ProcessTree(PROXIES[name](site), core, site.folder / "log")
    stack.callback(tree.stop)
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not is_answering(site.port):
        if not tree.is_running:
            raise Unavailable(f"it ended at once: {tree.log_tail()}")
        if time.monotonic() > deadline:
            raise Unavailable(
                f"no answer in {READY_TIMEOUT_S:.0f} s: {tree.log_tail()}"
            )
        time.sleep(0.2)
    return tree, site.port


def describe(python: Path) -> str:
    """Say which warmroute the figures are of."""
    kind = "compiled" if is_compiled(python) else "pure Python, not compiled"
    return f"{kind} ({python})"


def cores() -> tuple[int | None, int | None]:
    """Return the core of load and engines, and that of the proxies."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        print("one core only: nothing is pinned, read the figures with care")
        return None, None
    return usable[0], usable[1]


def self_check(bench: Bench, workloads: Sequence[Workload]) -> int:
    """Drive the engines directly: are the instruments sound, and how fast?"""
    faults = 0
    for workload in workloads:
        sample = bench.measure("direct", bench.engine_ports[0], None, workload)
        faults += sample.errors + sample.lost + sample.twice + (not sample.units)
        print(workload.name, json.dumps(sample.load))
    print("self-check", "failed" if faults else "passed")
    return 1 if faults else 0


def compare(
    bench: Bench, options: argparse.Namespace, folder: Path, core: int | None
) -> Report:
    """Start the proxies, then measure them in turns."""
    report = Report(options.proxies, [w.name for w in options.workloads])
    with ExitStack() as stack:
        running = {}
        for name in options.proxies:
            print(f"starting {name}", file=sys.stderr)
            try:
                if name.startswith("warmroute"):
                    report.notes[name] = describe(options.python)
                ports = free_port(), free_port()
                site = Site(folder / name, *ports, bench.engine_ports, options.python)
                tree, port = start_proxy(name, bench, site, core, stack)
            except (Unavailable, OSError, subprocess.SubprocessError) as error:
                report.skipped[name] = str(error)
                continue
            running[name] = tree, port
            report.idle_mib[name] = tree.rss_mib()
        for workload in options.workloads:
            for name, (tree, port) in running.items():  # warm-up, not counted
                bench.measure(name, port, tree, workload.shortened(0.2))
        for rep in range(options.reps):
            print(f"round {rep + 1} of {options.reps}", file=sys.stderr)
            # Nobody always measures behind the same neighbour's last threads.
            turn = rep % max(len(running), 1)
            names = [*running][turn:] + [*running][:turn]
            for workload in options.workloads:
                for name in names:
                    tree, port = running[name]
                    report.samples.append(bench.measure(name, port, tree, workload))
        for name, (tree, _) in running.items():
            report.loaded_mib[name] = tree.rss_mib()
    return report


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    names = [w.name for w in WORKLOADS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reps", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="a workload's length"
    )
    parser.add_argument("--quick", action="store_true", help="one round of 0.5 s each")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument(
        "--proxies", nargs="+", choices=list(PROXIES), default=list(DEFAULT_PROXIES)
    )
    parser.add_argument(
        "--python",
        type=Path,
        default=COMPILED if COMPILED.exists() else Path(sys.executable),
        help="interpreter that has the warmroute to measure (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples")
    parser.add_argument(
        "--check", action="store_true", help="exit 1 when a goal is missed"
    )
    parser.add_argument(
        "--self-check", action="store_true", help="run the instruments without a proxy"
    )
    options = parser.parse_args(arguments)
    if options.quick:
        options.reps, options.seconds = 1, 0.5
    options.workloads = [
        w.shortened(options.seconds) for w in WORKLOADS if w.name in options.only
    ]
    return options


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """Unwind on SIGTERM as on Ctrl-C, so that everything started is stopped."""
    raise KeyboardInterrupt


def show(report: Report, options: argparse.Namespace) -> int:
    """Print the table and the verdicts; return the exit code."""
    print(report.table())
    verdicts = report.verdicts()
    for met, text in verdicts:
        print("goal met:   " if met else "goal missed:", text)
    if options.json:
        options.json.write_text(json.dumps(report.as_json(), indent=1) + "\n")
    missed = report.faults() or not all(met for met, _ in verdicts)
    return 1 if options.check and missed else 0


def main(arguments: Sequence[str]) -> int:
    """Run the bench."""
    options = parse(arguments)
    signal.signal(signal.SIGTERM, stop)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        load_core, proxy_core = cores()
        bench = Bench(folder, stack, load_core)
        if options.self_check:
            return self_check(bench, options.workloads)
        report = compare(bench, options, folder, proxy_core)
    return show(report, options)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
