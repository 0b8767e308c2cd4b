"""Print what the vLLM plugin costs while nobody uses it, and what its verbs cost.

    python tests/bench/vllm_plugin.py [--pairs 40] [--json]

Two engines of the tiny model side by side: one with the plugin loaded and its door
open, one without it. Each pair sends both the same requests, the first one in turn, one
after the other: a cold prompt of 1,500 tokens (time to first token), the same again
with all but its last block cached, and eight prompts at once with 100 tokens of answer
(tokens a second). What counts is the ratio within a pair, so that what else the
machine does falls on both; its median has a 95 % interval by the bootstrap, and beside
it stands the ratio of the best of either. Beside the time stands the CPU time of all
threads of an engine. Blocks are of 32 tokens. The tiny model makes the plugin's share
larger than any real one.

The first run makes the environment of vLLM (about 4 GB), as the example does.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "examples" / "01_two_vllm")]

from engines.vllm_plugin_rig import (  # noqa: E402
    PluginEngine,
    PluginOptions,
    blocks,
    link_package,
    prompt,
    running,
)
from two_vllm.engines import EngineOptions  # noqa: E402
from two_vllm.environment import ensure_environment  # noqa: E402
from two_vllm.models import ensure_tiny  # noqa: E402

PROMPT = 1_500
ANSWER = 100
NUM_BLOCKS = 2_000
DRAWS = 2_000

Pair = tuple[float, float]


async def cold(engine: PluginEngine, name: str) -> float:
    """Return the seconds to the only token behind a fresh prompt."""
    begun = time.perf_counter()
    await engine.complete(prompt(name, PROMPT))
    return time.perf_counter() - begun


async def batch(engine: PluginEngine, name: str) -> float:
    """Return the seconds that eight answers take together."""
    begun = time.perf_counter()
    prompts = [prompt(f"{name}-{at}", 200) for at in range(8)]
    await asyncio.gather(*(engine.complete(one, ANSWER) for one in prompts))
    return time.perf_counter() - begun


def cpu_s(engine: PluginEngine) -> float:
    """Return the CPU seconds of all threads of an engine's processes."""
    total_ns = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if os.getpgid(int(folder.name)) != engine.pid:
                continue
            for task in (folder / "task").iterdir():
                total_ns += int((task / "schedstat").read_text().split()[0])
        except (ProcessLookupError, FileNotFoundError):
            continue
    return total_ns / 1e9


async def compare(
    plugged: PluginEngine, stock: PluginEngine, pairs: int
) -> dict[str, list[Pair]]:
    """Return the seconds of plugged and stock, for each measure."""
    pairs_of: dict[str, list[Pair]] = {}
    for at in range(-2, pairs):  # the first two warm the engines up
        order = [plugged, stock] if at % 2 else [stock, plugged]
        for measure, function, name in (
            ("cold", cold, f"prompt-{at}"),
            ("warm", cold, f"prompt-{at}"),
            ("batch", batch, f"batch-{at}"),
        ):
            took, used = {}, {}
            for engine in order:
                before_s = cpu_s(engine)
                took[id(engine)] = await function(engine, name)
                used[id(engine)] = cpu_s(engine) - before_s
            if at >= 0:
                for kind, found in (("time", took), ("CPU", used)):
                    pair = found[id(plugged)], found[id(stock)]
                    pairs_of.setdefault(f"{measure} {kind}", []).append(pair)
    return pairs_of


async def time_verbs(engine: PluginEngine) -> dict[str, float]:
    """Return the median milliseconds of verbs on a full cache, HTTP included."""
    for at in range(45):
        await engine.complete(prompt(f"verbs-{at}", PROMPT))
    named = blocks(prompt("verbs-44", PROMPT))
    calls: dict[str, dict[str, object]] = {
        "snapshot": {},
        "demote": named,
        "retain": {**named, "ttl_s": 60},
        "release": named,
    }
    times: dict[str, float] = {}
    for verb, body in calls.items():
        took = []
        for _ in range(15):
            begun = time.perf_counter()
            await engine.kv(verb, body)
            took.append(time.perf_counter() - begun)
        times[verb] = statistics.median(took) * 1e3
    return times


def interval(pairs: Sequence[Pair]) -> tuple[float, float, float, float]:
    """Return the median ratio, its 95 % interval, and the ratio of the best ones."""
    ratios = [one / other for one, other in pairs]
    best = min(one for one, _ in pairs) / min(other for _, other in pairs)
    chance = random.Random(1)
    medians = sorted(
        statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(DRAWS)
    )
    low, high = medians[int(DRAWS * 0.025)], medians[int(DRAWS * 0.975)]
    return statistics.median(ratios), low, high, best


async def run(pairs: int) -> dict[str, object]:
    """Start both engines, measure, and stop them."""
    environment = ensure_environment()
    base = EngineOptions(environment, ensure_tiny(environment), "tiny", NUM_BLOCKS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        site = link_package(folder / "site")
        sizes = {"num_blocks": NUM_BLOCKS, "max_model_len": 2_048}
        options = [
            PluginOptions("plugged", folder, site, **sizes),
            PluginOptions("stock", folder, site, None, "none", **sizes),
        ]
        async with running(base, options) as (plugged, stock):
            measured = await compare(plugged, stock, pairs)
            verbs = await time_verbs(plugged)
    return {
        "pairs": pairs,
        "ratios": {name: interval(found) for name, found in measured.items()},
        "verbs_ms": verbs,
    }


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40, help="pairs of each measure")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    found = asyncio.run(run(options.pairs))
    if options.json:
        print(json.dumps(found))
        return
    print(f"with the plugin / without it, median of {options.pairs} pairs (95 %)")
    for name, (middle, low, high, best) in found["ratios"].items():  # type: ignore[attr-defined]
        print(f"  {name:10} {middle:.3f}  ({low:.3f} to {high:.3f})  best {best:.3f}")
    print("verbs on a full cache of 2,000 blocks, 46 named, ms with HTTP")
    for name, took in found["verbs_ms"].items():  # type: ignore[attr-defined]
        print(f"  {name:9} {took:.1f}")


if __name__ == "__main__":
    main()
