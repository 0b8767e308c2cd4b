"""Play an hour of traffic into ring, metrics and watch, and print what it took.

Run: python tests/bench/onlookers/memory.py [--hours H] [--backends N]
"""

import argparse
import asyncio
import gc
import logging
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import generate_latest

from warmroute.policies.routing.base import Costs
from warmroute.proxy.admin.state import IndexFacts, ReloadStatus
from warmroute.proxy.killer_watch import MAX_QUEUED, KillerWatch
from warmroute.proxy.ledger import Ledger
from warmroute.proxy.ledger.decision import Decision, Roster
from warmroute.proxy.metrics import Exposition, build_registry
from warmroute.proxy.prompt.prompt import Piece, Prompt

RATE = 1000
CAP_BYTES = 64 * 2**20
LOOK_EVERY = RATE // 20
SCRAPE_EVERY = 15 * RATE
PAGE = 4096


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


class Play:
    """One simulated proxy: what it keeps, and the clock it is told."""

    def __init__(self, num_backends: int) -> None:
        self.draw = random.Random(1)
        self.names = [f"backend-{at}" for at in range(num_backends)]
        every = range(num_backends)
        self.roster = Roster(
            self.names, ["up"] * num_backends, ["events"] * num_backends, every
        )
        self.now = 0.0
        self.ledger = Ledger()
        self.ledger.know_models(["smol", "large"])
        self.watch = KillerWatch(lambda: self.now)
        self.registry = build_registry(self._exposition())

    def _exposition(self) -> Exposition:
        up = {name: SimpleNamespace(name=name, state="up") for name in self.names}
        fleet: Any = SimpleNamespace(backends=up)
        view: Any = SimpleNamespace(facts=lambda name: {"blocks": 7})
        reloads = ReloadStatus(True, 0.0)
        index = IndexFacts(0, 0, 0)
        return Exposition(self.ledger, fleet, view, lambda: index, reloads, "0")

    def requests(self, num: int) -> Iterator[int]:
        """Play *num* requests; yields the number of series at each scrape."""
        for at in range(num):
            self.now += 1 / RATE
            self.request(at)
            if at % LOOK_EVERY == 0:
                self.watch.look()
            if at % SCRAPE_EVERY == SCRAPE_EVERY - 1:
                text = generate_latest(self.registry)
                yield sum(not line.startswith(b"#") for line in text.splitlines())

    def request(self, at: int) -> None:
        draw, num = self.draw, len(self.names)
        made_up = f"model-{at}" if at % 10 == 0 else "smol"
        matched = [draw.randrange(0, 4096) for _ in range(num)]
        costs = Costs([draw.random() for _ in range(4 * num)])
        decision = Decision(
            *(f"client-id-{at:012}", 1.79e9 + self.now, f"/v1/chat/completions?{at}"),
            *(made_up, "estimated", 4200, "expected_ttft", self.roster, matched),
            *(draw.randrange(num), "prefix", costs, None, 4.1),
        )
        self.ledger.open(decision, 2e-5)
        text = f"Request {at}. ".encode() + draw.randbytes(8).hex().encode() * 250
        pieces = (Piece(1000, 7, None, text),)
        self.watch.see(Prompt("chat", made_up, "estimated", pieces))
        status = 200 if at % 50 else 500 + at % 4
        self.ledger.settle(
            *(decision, status, draw.random() * 9, 1024, 4300, 1024, 90),
            *(draw.random(), None if status == 200 else "backend_lost"),
        )


async def main() -> int:
    """Play on a loop that never turns: the play itself looks, on its own clock."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--backends", type=int, default=8)
    options = parser.parse_args()
    logging.disable()
    play = Play(options.backends)
    gc.collect()
    before, first, last = resident_bytes(), 0, 0
    for series in play.requests(round(options.hours * 3600 * RATE)):
        first, last = first or series, series
        if sys.stderr.isatty():
            print(f"\r{play.now / 36 / options.hours:.0f} %\r", end="", file=sys.stderr)
    grown = resident_bytes() - before
    watch = repr(play.watch)
    play.watch.close()
    print(f"{options.backends} backends, {play.now / 3600:.2f} h at {RATE} requests/s")
    print(f"process grew by {grown / 2**20:.1f} MiB (allowed: 64)")
    print(f"ring: {len(play.ledger)} records, {play.ledger.size_bytes / 2**20:.1f} MiB")
    print(f"watch: {watch} (queue of {MAX_QUEUED})")
    print(f"series: {first} at the first scrape, {last} at the last")
    return int(grown > CAP_BYTES or last > 1.05 * first)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
