"""Play chats, retrieval and agents through warmroute, and check what replay predicts.

    python tests/bench/workloads/run.py --load all
    python tests/bench/workloads/run.py --load rag --engine tiny --constants no

Three engines in processes, ``warmroute serve`` in front, one run a policy with empty
caches. Then ``warmroute replay`` predicts the same, with the constants that ``warmroute
bench --calibrate`` finds on one of the engines. See README.md beside this file.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
from live import (
    MAX_BATCHED_TOKENS,
    MAX_SEQUENCES,
    VOCABULARIES,
    Engines,
    measure,
    running_engines,
)
from loads import LOADS, Words, make_load
from predicted import from_load, from_records, read_constants
from report import Result

from warmroute.proxy.bench.calibrated import Plan, calibrate
from warmroute.proxy.demo.engine_view import EngineView
from warmroute.proxy.demo.progress import Step

POLICIES = "round_robin,weighted_scores,expected_ttft"
TIMED = Path(__file__).parent / "timed_engine.json"


async def run(options: argparse.Namespace) -> list[Result]:
    """Measure and predict the loads, one after the other."""
    policies = options.policy.split(",")
    names = LOADS if options.load == "all" else (options.load,)
    words = Words(VOCABULARIES[options.engine])
    results = []
    async with AsyncExitStack() as stack:
        made = stack.enter_context(tempfile.TemporaryDirectory())
        folder = _made(Path(options.folder or made))
        connector = aiohttp.TCPConnector(limit=0)
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=connector)
        )
        engines = Engines(options.engine, options.num_blocks, options.timing)
        views = await stack.enter_async_context(running_engines(engines, folder, http))
        constants = await _constants(options, engines, views[0], folder)
        for name in names:
            load = make_load(name, words, options.size, options.seed)
            own = _made(folder / name)
            result = Result(load)
            for policy in policies:
                got = await measure(policy, load, engines.model, views, own, http)
                result.add(policy, got)
            if constants is not None:
                _predict(result, policies, own, constants)
            results.append(result)
            if not options.json:
                print(result.as_text() + "\n", flush=True)
    return results


def _made(folder: Path) -> Path:
    """Make a folder; access records of an earlier run would be added to."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("access-*.jsonl*"):
        old.unlink()
    return folder


def _predict(
    result: Result, policies: list[str], folder: Path, constants: Path
) -> None:
    known, request_s = read_constants(constants)
    result.predicted["the load"] = from_load(result.load, policies, known, request_s)
    # The command knows the engine alone.
    engine = json.loads(constants.read_bytes())
    engine.pop("request_s", None)
    plain = folder / "engine.json"
    plain.write_text(json.dumps(engine))
    records = folder / f"access-{policies[0]}.jsonl"
    result.predicted[f"access records of {policies[0]}"] = from_records(
        records, policies, plain, request_s
    )


async def _constants(
    options: argparse.Namespace, engines: Engines, view: EngineView, folder: Path
) -> Path | None:
    """Return the file that tells replay of the engine, measured if none was given."""
    if options.constants == "no":
        return None
    if options.constants is not None:
        return Path(options.constants)
    plan = Plan(
        view.url,
        engines.model,
        {},
        max_prompt=2048,
        max_batch=4,
        reps=options.reps,
        timeout_s=300.0,
        max_batched_tokens=MAX_BATCHED_TOKENS,
        max_sequences=MAX_SEQUENCES,
        kv_tokens=None,
    )
    with Step("calibrating") as step:
        found = await calibrate(plan, step.count)
    path = folder / "measured.json"
    measured = {**found.as_object(), "request_s": found.costs.request_s}
    path.write_text(json.dumps(measured))
    shown = ", ".join(f"{name} {value:.3g}" for name, value in measured.items())
    print(f"calibrated ({found.costs.error:.1%} off): {shown}", file=sys.stderr)
    return path


def main() -> int:
    """Run what was asked for; 1 if a request failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--load", choices=(*LOADS, "all"), default="all")
    add("--engine", choices=VOCABULARIES, default="timed", help="what computes (timed)")
    add("--policy", default=POLICIES, metavar="P[,P...]", help=f"({POLICIES})")
    add("--size", type=float, default=1.0, help="share of the sessions (1)")
    add("--seed", type=int, default=0)
    add("--num-blocks", type=int, default=1536, help="of each engine (1536)")
    add("--timing", type=Path, default=TIMED, help="of timed engines, a JSON file")
    add("--constants", help="what replay believes, a JSON file (measured); no: none")
    add("--reps", type=int, default=2, help="of the calibration (2)")
    add("--folder", help="where configurations, records and logs stay (nowhere)")
    add("--json", action="store_true", help="print JSON, not tables")
    options = parser.parse_args()
    try:
        results = asyncio.run(run(options))
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(json.dumps([one.as_object() for one in results], indent=2))
    return 0 if all(one.is_whole for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
