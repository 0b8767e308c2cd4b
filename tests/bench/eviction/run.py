"""Print the prefix hits of every block eviction policy on request traces.

    python tests/bench/eviction/run.py --data DIR
    python tests/bench/eviction/run.py --traces rag scans phases --policies lru adaptive

The two public traces are read from DIR; README.md says where they come from. The
figure in brackets is that of the project's first simulator, where there is one.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import generated
import traces
from published import CAPACITIES_M, IDEAL, TREES, published
from replay import Cache, Pool, TraceClock, bound_percent, hit_percent, ideal_percent
from traces import BLOCK, DataMissing, Request

from warmroute.policies.errors import PolicyError
from warmroute.policies.eviction.base import BlockEviction
from warmroute.policies.eviction.registry import create, evictions

BOUND = "belady"
OPTIONS: dict[str, dict[str, object]] = {"gdsf": {"block_size": BLOCK}}
GENERATED: dict[str, Callable[[], list[Request]]] = {
    "rag": generated.rag,
    "scans": generated.scans,
    "phases": generated.phases,
}
READ = ("conversation", "agentic")

Table = dict[str, dict[str, dict[float, float]]]
"""Hit percentages by trace, policy and capacity."""


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of the public traces")
    parser.add_argument(
        "--traces", nargs="+", choices=[*READ, *GENERATED], default=list(READ)
    )
    parser.add_argument("--policies", nargs="+", help="default: all, and the bound")
    parser.add_argument(
        "--capacities", nargs="+", type=float, default=list(CAPACITIES_M),
        help="millions of tokens (default: 1 3 6 12)",
    )  # fmt: skip
    memory = parser.add_mutually_exclusive_group()
    memory.add_argument(
        "--held", action="store_true", help="requests hold their blocks, as in a pool"
    )
    memory.add_argument(
        "--beside", action="store_true",
        help="no policy has the prompt at hand held (default: as the first simulator)",
    )  # fmt: skip
    parser.add_argument(
        "--draw", type=int, default=traces.SESSION_SEED,
        help="seed that draws the agents' sessions (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    arguments = parser.parse_args()
    if arguments.data is None and set(arguments.traces) & set(READ):
        parser.error("--data is needed for conversation and agentic")
    return arguments


def requests_of(trace: str, arguments: argparse.Namespace) -> list[Request]:
    if trace == "conversation":
        return traces.conversation(arguments.data)
    if trace == "agentic":
        return traces.agentic(arguments.data, arguments.draw)
    return GENERATED[trace]()


def cache_kind(policy: str, arguments: argparse.Namespace) -> type[Cache]:
    """Say whether requests hold their blocks: by default, where the first run's did."""
    as_tree = policy in TREES and not arguments.beside
    return Pool if arguments.held or as_tree else Cache


def build(name: str, capacity: int, clock: TraceClock) -> BlockEviction:
    return create(name, capacity, clock, **OPTIONS.get(name, {}))


def show(label: str, share: float) -> None:
    """Show on standard error how far a cell has come."""
    if sys.stderr.isatty():
        print(f"\r\033[K{label} {share:4.0%}", end="", file=sys.stderr, flush=True)


def measure(
    policy: str,
    requests: Sequence[Request],
    capacity_m: float,
    kind: type[Cache],
    label: str,
) -> float:
    capacity = int(capacity_m * 1e6 / BLOCK)
    start = time.process_time()
    if policy == BOUND:
        percent = bound_percent(requests, capacity)
    else:
        maker, progress = partial(build, policy), partial(show, label)
        percent = hit_percent(requests, capacity, maker, kind, progress)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    seconds = time.process_time() - start
    print(f"{label}: {percent:.2f} %, {seconds:.0f} s of CPU", file=sys.stderr)
    return percent


def cell(trace: str, policy: str, capacity_m: float, percent: float) -> str:
    earlier = published(trace, policy, capacity_m)
    return f"{percent:6.2f}" + (
        f" ({earlier:4.1f})" if earlier is not None else " " * 7
    )


def print_table(trace: str, rows: dict[str, dict[float, float]], ideal: float) -> None:
    earlier = IDEAL.get(trace)
    note = f" ({earlier})" if earlier is not None else ""
    print(f"\n{trace}: prefix hit %, {ideal:.2f}{note} without eviction")
    capacities = list(next(iter(rows.values())))
    print(f"{'M tokens':<15}" + "".join(f"{size:>6g}       " for size in capacities))
    for policy, hits in rows.items():
        cells = "".join(cell(trace, policy, size, hits[size]) for size in capacities)
        print(f"{policy:<15}{cells}".rstrip())


def print_means(table: Table, policies: Sequence[str]) -> None:
    print("\nmean over all cells")
    for policy in policies:
        hits = [one for rows in table.values() for one in rows[policy].values()]
        print(f"{policy:<15}{sum(hits) / len(hits):6.2f}")


def main() -> int:
    arguments = read_arguments()
    policies = arguments.policies or [*evictions.names(), BOUND]
    table: Table = {}
    try:
        for trace in arguments.traces:
            requests = requests_of(trace, arguments)
            rows = table[trace] = {name: {} for name in policies}
            for name, size in product(policies, arguments.capacities):
                label = f"{trace} {name} {size:g} M"
                kind = cache_kind(name, arguments)
                rows[name][size] = measure(name, requests, size, kind, label)
            print_table(trace, rows, ideal_percent(requests))
    except (DataMissing, PolicyError) as error:
        print(error, file=sys.stderr)
        return 2
    print_means(table, policies)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(table, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
