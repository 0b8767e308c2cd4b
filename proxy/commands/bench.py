"""``warmroute bench``: what warmroute costs here, and what an engine's steps cost."""

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from warmroute.policies.errors import ConfigError, PolicyError, WarmrouteError
from warmroute.proxy.commands.numbers import whole
from warmroute.proxy.demo.progress import step_on_terminal

if TYPE_CHECKING:
    from warmroute.proxy.bench.calibrated import Calibrated, Plan

FAILED = 1

_NUMBERS = (
    ("--max-prompt", 4096, "longest prompt, in tokens"),
    ("--max-batch", 8, "most streams at once"),
    ("--max-batched-tokens", 8192, "the engine's limit of tokens a step"),
    ("--max-sequences", 256, "the engine's limit of running sequences"),
    ("--timeout", 120, "seconds for one answer"),
)
_UNUSED_ALONE = {
    **dict.fromkeys(("--model", "--output", "--api-key-env", "--kv-tokens")),
    **{flag: default for flag, default, _ in _NUMBERS},
}


class BenchCommand:
    """Measure this machine, or calibrate the simulated engine by a real one."""

    name = "bench"
    help = "measure what warmroute costs here, or what an engine's steps cost"
    description = (
        "Without --calibrate: CPU of a routing decision, of a block that enters the "
        "index, and of a proxied request against a relay that only passes bytes, all "
        "in one run, as ratios. With --calibrate URL: time prefills and decodes of an "
        "idle engine, and print the constants for `warmroute replay --engine-model "
        "batching --constants FILE`."
    )
    examples = """examples:
  warmroute bench
  warmroute bench --policy weighted_scores --reps 9 --json
  warmroute bench --calibrate http://127.0.0.1:8101 --model smol --output engine.json

exit codes: 0 measured, 1 something failed or a decision costs too much, 2 bad usage
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        add = parser.add_argument
        add(
            "--reps",
            type=whole(1, 1000),
            default=5,
            metavar="N",
            help="measure everything N times; the best counts (5)",
        )
        add("--policy", default="expected_ttft", help="whose decisions (expected_ttft)")
        add("--json", action="store_true", help="print JSON, not a table")
        _add_calibration(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Measure, print what was found, and return the exit code."""
        if options.calibrate is not None:
            return _calibrate(options)
        _refuse_unused(options)
        from warmroute.proxy.bench.overhead import measure_overhead

        try:
            found = measure_overhead(options.policy, options.reps)
        except PolicyError as error:
            raise ConfigError(f"--policy: {error}") from error
        told = found.as_object()
        print(json.dumps(told, indent=2) if options.json else found.as_text())
        return FAILED if any(one["ratio"] > 1 for one in told["decision"]) else 0


def _add_calibration(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("calibration of an engine")
    add = group.add_argument
    add("--calibrate", metavar="URL", help="the engine's address; it should be idle")
    add("--model", metavar="M", help="the model, as requests name it")
    add("--output", metavar="FILE", help="write the constants there, not to the screen")
    add(
        "--api-key-env",
        metavar="NAME",
        help="environment variable that holds the engine's key",
    )
    for flag, default, text in _NUMBERS:
        add(
            flag,
            type=whole(1, 10**9),
            default=default,
            metavar="N",
            help=f"{text} ({default})",
        )
    add(
        "--kv-tokens",
        type=whole(1, 10**12),
        metavar="N",
        help="tokens that the engine's KV cache holds (asked from the engine)",
    )


def _refuse_unused(options: argparse.Namespace) -> None:
    """Say so where a flag would do nothing."""
    for flag, default in _UNUSED_ALONE.items():
        if getattr(options, flag[2:].replace("-", "_")) != default:
            raise ConfigError(
                f"{flag} is for an engine; name it with --calibrate URL, or leave "
                f"{flag} out"
            )


def _calibrate(options: argparse.Namespace) -> int:
    from warmroute.proxy.bench.calibrated import calibrate

    plan = _plan(options)
    if options.output is not None:
        _try(Path(options.output))
    with step_on_terminal("calibrating") as step:
        count = (lambda *_: None) if step is None else step.count
        found = asyncio.run(calibrate(plan, count))
    text = json.dumps(found.as_object(), indent=2)
    if options.output is None:
        print(text)
    else:
        _write(Path(options.output), text)
    print(_comment(found), file=sys.stderr)
    return 0


def _plan(options: argparse.Namespace) -> "Plan":
    from warmroute.proxy.bench.calibrated import Plan

    if not options.model:
        raise ConfigError("--calibrate needs --model, the name that requests use")
    if not options.calibrate.startswith(("http://", "https://")):
        raise ConfigError(
            f"--calibrate: {options.calibrate!r} is no URL (allowed: http://host:port)"
        )
    headers = {}
    if options.api_key_env is not None:
        key = os.environ.get(options.api_key_env)
        if not key:
            raise ConfigError(f"--api-key-env: {options.api_key_env} is not set")
        headers["authorization"] = f"Bearer {key}"
    return Plan(
        options.calibrate,
        options.model,
        headers,
        options.max_prompt,
        options.max_batch,
        options.reps,
        options.timeout,
        options.max_batched_tokens,
        options.max_sequences,
        options.kv_tokens,
    )


def _try(path: Path) -> None:
    """Find out before the measuring whether *path* can be written."""
    was_there = path.exists()
    try:
        path.open("ab").close()
        if not was_there:
            path.unlink()
    except OSError as error:
        raise ConfigError(
            f"--output: {path} cannot be written: {error.strerror}; make its folder, "
            "or name another file"
        ) from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n")
    except OSError as error:
        raise WarmrouteError(f"{path}: cannot be written: {error.strerror}") from error


def _comment(found: "Calibrated") -> str:
    costs = found.costs
    lines = [
        f"fits the measured times within {costs.error:.0%} (root of the mean square); "
        f"a request takes {1e3 * costs.request_s:.1f} ms outside the engine's steps"
    ]
    if found.kv_tokens is None:
        lines.append(
            "the engine does not tell its kv_tokens; add them with --kv-tokens"
        )
    return "\n".join(lines)
