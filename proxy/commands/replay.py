"""``warmroute replay``: what each policy would have made of recorded traffic."""

import argparse
import json
import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from warmroute.policies.errors import ConfigError, PolicyError

if TYPE_CHECKING:
    from warmroute.proxy.demo.progress import Step
    from warmroute.proxy.replay.setting import Setting

_POLICIES = "round_robin,least_requests,expected_ttft"
_UNITS = {"k": 1e3, "M": 1e6, "G": 1e9}


class ReplayCommand:
    """Replay a trace under policies, on simulated time."""

    name = "replay"
    help = "replay a trace under several policies, and compare"
    description = (
        "Play a recorded trace to a simulated fleet, once for each policy, and print "
        "what users would have waited and what was computed twice. Policies, load and "
        "token classes are those of `warmroute serve`; beside them stands what no "
        "router can beat. TRACE is a file of Mooncake's JSON lines, plain, .gz or .zst."
    )
    examples = """examples:
  warmroute replay conversation_trace.jsonl
  warmroute replay trace.jsonl.zst --backends 4 --capacity 3M --prefill-rate 20k
  warmroute replay trace.jsonl.gz --policy round_robin,expected_ttft --jitter 3 \\
    --seeds 4 --json

exit codes: 0 replayed, 1 something failed, 2 unknown policy, bad option or trace
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        add = parser.add_argument
        add("trace", metavar="TRACE", help="the trace")
        add(
            "--policy",
            default=_POLICIES,
            metavar="P[,P...]",
            help=f"what to compare ({_POLICIES})",
        )
        _add_engines(parser)
        _add_playing(parser)
        add("--json", action="store_true", help="print JSON, not a table")

    def run(self, options: argparse.Namespace) -> int:
        """Replay, print what came of it, and return the exit code."""
        from pathlib import Path

        from warmroute.proxy.replay.comparison import Comparison
        from warmroute.proxy.replay.mooncake import read_mooncake
        from warmroute.proxy.replay.report import Report

        names = _known_policies(options.policy)
        trace, setting = read_mooncake(Path(options.trace)), _setting(options)
        with _progress() as step:
            count = None if step is None else step.count
            routed, oracles = Comparison(trace, setting, count).run(names)
        report = Report(trace, setting, routed, oracles)
        print(json.dumps(report.as_object()) if options.json else report.as_text())
        return 0


def _known_policies(text: str) -> list[str]:
    """Split *text* into names, each once, and have every policy built."""
    from warmroute.proxy.replay.fleets import build_policy

    names = list(dict.fromkeys(text.split(",")))
    try:
        for name in names:
            build_policy(name, 0)
    except PolicyError as error:
        raise ConfigError(f"--policy: {error}") from error
    return names


def _setting(options: argparse.Namespace) -> "Setting":
    from warmroute.proxy.replay.setting import Setting

    return Setting(
        options.backends,
        options.capacity,
        options.prefill_rate,
        options.speed,
        options.jitter,
        options.seeds,
    )


def _add_engines(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--engine-model",
        choices=("fifo",),
        default="fifo",
        help="how engines are simulated (fifo: one prompt after the other)",
    )
    add(
        "--backends",
        type=_count(4096, 1),
        default=8,
        metavar="N",
        help="how many engines (8)",
    )
    add(
        "--capacity",
        type=_count(10**12, 0),
        default=10**6,
        metavar="TOKENS",
        help="prefix cache of each, such as 420k or 3M (1M)",
    )
    add(
        "--prefill-rate",
        type=_number(1e9),
        default=8000.0,
        metavar="R",
        help="prompt tokens that each computes a second (8k)",
    )


def _add_playing(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--speed",
        type=_number(1e6),
        default=1.0,
        metavar="X",
        help="play it X times as fast as recorded (1)",
    )
    add(
        "--jitter",
        type=_number(1e6, 0.0),
        default=0.0,
        metavar="S",
        help="delay each request by up to S recorded seconds, at random (0)",
    )
    add(
        "--seeds",
        type=_count(1000, 1),
        default=1,
        metavar="K",
        help="play it K times with other random numbers, and take means (1)",
    )


def _progress() -> AbstractContextManager["Step | None"]:
    """Show progress on a terminal; elsewhere nothing but the result."""
    if not sys.stderr.isatty():
        return nullcontext()
    from warmroute.proxy.demo.progress import Step

    return Step("replaying")


def _number(most: float, least: float | None = None) -> Callable[[str], float]:
    """Return a reader of numbers, above 0 without a least; k, M or G may end them."""

    def number(text: str) -> float:
        unit = _UNITS.get(text[-1:])
        try:
            value = float(text[:-1]) * unit if unit else float(text)
        except ValueError:
            value = math.nan
        is_enough = value > 0 if least is None else value >= least
        if not (is_enough and value <= most):
            allowed = "above 0" if least is None else f"from {least:g}"
            raise argparse.ArgumentTypeError(
                f"{text!r} (allowed: numbers {allowed}, at most {most:g})"
            )
        return value

    return number


def _count(most: int, least: int) -> Callable[[str], int]:
    """Return a reader of whole numbers; k, M or G may end them."""
    read = _number(most, least)

    def count(text: str) -> int:
        value = read(text)
        if not value.is_integer():
            raise argparse.ArgumentTypeError(f"{text!r} (allowed: whole numbers)")
        return int(value)

    return count
