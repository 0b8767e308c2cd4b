"""The conductor on and off, side by side, in front of three small embedded engines.

    .venv/bin/python tests/bench/conductor.py [--pairs 6] [--seconds 40]

Engines with the tiny model and warmroute run as processes. Two workloads:

- mixed: chats that come back after seconds, and agents that come back at once, are done
  after some steps, and write over the pools meanwhile. Both begin with a prompt that
  many share.
- hostile: no prompt has anything in common with any other.

Two fleets of three engines run at the same time and are sent the same prompts at the
same moments, so that whatever else the machine does falls on both. In one of them the
conductor acts, in the other it is stopped; after each block of time they change roles.
Caches go on as they are. Tokens computed for a copy by the conductor count as paid
twice.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from conductor_load import LOADS, Load, Player

from warmroute.proxy.demo.child import Child, free_port
from warmroute.proxy.demo.embedded import EngineOptions, running_engines

NAMES = ("a", "b", "c")
MODEL = "tiny"


@dataclass
class Half:
    """What one block of time came to."""

    ttft_s: list[float] = field(default_factory=list)
    prompt: int = 0
    twice: int = 0
    copied: int = 0
    hit: int = 0
    failed: int = 0
    classes: dict[str, int] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return (self.twice + self.copied) / max(self.prompt, 1)

    @property
    def median_ms(self) -> float:
        return 1000 * statistics.median(self.ttft_s)

    @property
    def computed(self) -> float:
        return (self.prompt - self.hit) / max(len(self.ttft_s), 1)

    @property
    def mean_ms(self) -> float:
        return 1000 * statistics.fmean(self.ttft_s)


PAID_TWICE = ("evicted", "elsewhere", "unpredicted")


class Front:
    """A running warmroute in front of the engines."""

    def __init__(self, http: aiohttp.ClientSession, url: str, admin: str) -> None:
        self.http = http
        self.url = url
        self.admin_url = admin

    async def admin(self, method: str, path: str) -> dict[str, Any]:
        body = {"json": {}} if method == "POST" else {}
        url = self.admin_url + path
        async with self.http.request(method, url, **body) as answer:
            content: dict[str, Any] = await answer.json()
            assert answer.status == 200, content
            return content

    async def ask(self, prompt: list[int], answer: int, half: Half) -> None:
        """Stream an answer, and note when its first token came."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": answer}
        body |= {"stream": True, "temperature": 0, "ignore_eos": True}
        begun, first = time.perf_counter(), None
        try:
            async with self.http.post(
                f"{self.url}/v1/completions", json=body
            ) as response:
                async for _ in response.content:
                    if first is None:
                        first = time.perf_counter() - begun
            if response.status == 200 and first is not None:
                half.ttft_s.append(first)
                return
        except aiohttp.ClientError as error:
            print(f"request failed: {error!r}", file=sys.stderr)
        half.failed += 1


@asynccontextmanager
async def running(num_blocks: int, share: float) -> AsyncIterator[Front]:
    """Run three engines and warmroute for the length of the block."""
    timeout = aiohttp.ClientTimeout(total=60)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        async with aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(limit=0)
        ) as http:
            options = EngineOptions(num_blocks, MODEL)
            async with running_engines(options, NAMES, place, http) as engines:
                ports = free_port(), free_port()
                config = {
                    "listen": f"127.0.0.1:{ports[0]}",
                    "admin": f"127.0.0.1:{ports[1]}",
                    "truth": {"usage": "inject"},
                    "conductor": {"enabled": True, "retained_share": share},
                    "backends": [
                        {"name": one.name, "url": one.url, "engine": "embedded"}
                        for one in engines
                    ],
                }
                path = place / "config.yaml"
                path.write_text(yaml.safe_dump(config))
                child = Child("warmroute", place / "warmroute.log")
                command = (sys.executable, "-m", "warmroute.proxy.cli", "serve")
                await child.start((*command, "-c", str(path)))
                front = Front(
                    http, f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}"
                )
                try:
                    await child.ready(lambda: _is_ready(front))
                    yield front
                finally:
                    await child.stop()


async def _is_ready(front: Front) -> bool:
    try:
        state = await front.admin("GET", "/api/state")
    except aiohttp.ClientError:
        return False
    return all(
        one["view"]["source"] == "events" and one["kv"]["retain"] is True
        for one in state["backends"]
    )


async def play_block(
    off: Front, on: Front, load: Load, seconds: float, block: int
) -> tuple[Half, Half]:
    """Play one block of time into empty caches; returns what both came to."""
    await off.admin("POST", "/api/conductor/stop")
    await on.admin("POST", "/api/conductor/start")
    before = [await _counts(front) for front in (off, on)]
    halves = Half(), Half()
    pair = [(off, halves[0]), (on, halves[1])]
    await Player(load, 7, block, pair).play(seconds)
    await asyncio.sleep(0.5)
    for front, half, known in zip((off, on), halves, before, strict=True):
        counts, told = await _counts(front), known
        gained = {name: counts[0][name] - told[0][name] for name in counts[0]}
        half.prompt, half.hit = gained["prompt"], gained["hit"]
        half.classes = {one: gained[one] for one in PAID_TWICE}
        half.twice = sum(half.classes.values())
        half.copied = counts[1] - told[1]
        half.done = {kind: n - told[2].get(kind, 0) for kind, n in counts[2].items()}
    return halves


async def _counts(front: Front) -> tuple[dict[str, int], int, dict[str, int]]:
    state = await front.admin("GET", "/api/state")
    told = await front.admin("GET", "/api/conductor")
    return state["tokens"], told["copied_tokens"], told["done"]


async def compare(options: argparse.Namespace) -> dict[str, list[tuple[Half, Half]]]:
    """Play pairs of every workload; returns (off, on) of each."""
    found: dict[str, list[tuple[Half, Half]]] = {}
    for name in options.workload.split(","):
        load, size = LOADS[name], (options.num_blocks, options.share)
        found[name] = []
        async with running(*size) as one, running(*size) as two:
            print(f"{name}: warming up for {options.seconds:.0f} s", flush=True)
            await play_block(one, two, load, options.seconds / 2, 0)
            await play_block(two, one, load, options.seconds / 2, 1)
            for pair in range(options.pairs):
                # ABBA: a drift falls on both alike.
                off, on = (one, two) if pair % 4 in (0, 3) else (two, one)
                halves = await play_block(off, on, load, options.seconds, pair + 2)
                found[name].append(halves)
                print(_line(pair, *halves), flush=True)
            if options.verbose:
                told = await one.admin("GET", "/api/conductor")
                print(json.dumps(told["outcomes"], indent=1))
                print(json.dumps(told["actions"][: options.verbose], indent=1))
    return found


def _line(pair: int, off: Half, on: Half) -> str:
    return (
        f"  pair {pair}: paid twice {off.ratio:.3f} -> {on.ratio:.3f}, "
        f"hit {off.hit / off.prompt:.3f} -> {on.hit / on.prompt:.3f}, "
        f"mean TTFT {off.mean_ms:.1f} -> {on.mean_ms:.1f} ms, "
        f"{len(off.ttft_s)}/{len(on.ttft_s)} requests, "
        f"{off.failed}/{on.failed} failed, "
        f"actions {on.done}, copied {on.copied}, {off.classes} -> {on.classes}"
    )


def report(name: str, pairs: Sequence[tuple[Half, Half]]) -> None:
    """Print the sums, and the spread over pairs."""
    off, on = zip(*pairs, strict=True)
    for what, read in (
        ("paid twice", lambda one: one.ratio),
        ("mean TTFT in ms", lambda one: one.mean_ms),
        ("median TTFT in ms", lambda one: one.median_ms),
        ("computed tokens a request", lambda one: one.computed),
    ):
        a = statistics.fmean(read(one) for one in off)
        b = statistics.fmean(read(one) for one in on)
        changes = [
            read(two) / read(one) - 1 for one, two in pairs if read(one) > 0
        ] or [0.0]
        error = (
            statistics.stdev(changes) / len(changes) ** 0.5 if len(changes) > 1 else 0
        )
        print(
            f"{name}: {what} {a:.3f} off, {b:.3f} on: "
            f"{100 * statistics.fmean(changes):+.1f} % +- {100 * error:.1f} "
            f"(standard error over {len(changes)} pairs)"
        )
    print(f"{name}: copied {sum(one.copied for one in on)} tokens")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--num-blocks", type=int, default=768)
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--workload", default="mixed,hostile")
    parser.add_argument("--verbose", type=int, default=0, metavar="ACTIONS")
    options = parser.parse_args()
    for name, pairs in asyncio.run(compare(options)).items():
        report(name, pairs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
