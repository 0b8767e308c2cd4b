"""Predict by the simulator of ``warmroute replay`` what a load will see.

Twice: from the load itself, with turns that wait for the answer before them, as clients
do; and by the command from the access records of one live run, at the times recorded,
as whoever asks about their own traffic does.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import msgspec
from live import BLOCK, NAMES
from loads import Load

from warmroute.proxy.replay.arrival import Arrival
from warmroute.proxy.replay.engine_constants import EngineConstants
from warmroute.proxy.replay.figures import percentile
from warmroute.proxy.replay.fleets import routed_fleet
from warmroute.proxy.replay.served import Served
from warmroute.proxy.replay.setting import Setting
from warmroute.proxy.replay.tally import Tally
from warmroute.proxy.replay.trace import Session, Trace, TraceRequest, Turn

PLAYS = 20
_LATE_S = 0.01


class Kept(Tally):
    """A tally that keeps what came of each request."""

    __slots__ = ("served",)

    def __init__(self, backends: int) -> None:
        super().__init__(backends)
        self.served: list[Served] = []

    def add(self, served: Served, now: float) -> None:
        """Take in a request."""
        super().add(served, now)
        self.served.append(served)


class Paced:
    """A workload whose sessions all run at once, each from its own start on.

    Args:
        sessions: All of them.
        rng: Draws by how much each turn is late.
    """

    def __init__(self, sessions: Sequence[Session], rng: Random) -> None:
        self._sessions = sessions
        self._rng = rng
        self._due: list[tuple[float, int, int]] = []
        for place in range(len(sessions)):
            self._follow(place, -1, 0.0)

    @property
    def next_at(self) -> float:
        """When the next request comes, as far as is known."""
        return self._due[0][0] if self._due else inf

    def pop(self) -> Arrival:
        """Return the next request."""
        time_s, place, turn = heappop(self._due)
        request = self._sessions[place].turns[turn].request
        return Arrival(time_s, request, place, turn)

    def finished(self, arrival: Arrival, at: float) -> None:
        """Let the turn come that waits for this one."""
        self._follow(arrival.slot, arrival.turn, at)

    def _follow(self, place: int, turn: int, at: float) -> None:
        session = self._sessions[place]
        for follower in session.followers[turn + 1]:
            due = at + session.turns[follower].think_s + self._rng.uniform(0.0, _LATE_S)
            heappush(self._due, (due, place, follower))


def from_load(
    load: Load,
    policies: Sequence[str],
    constants: EngineConstants,
    request_s: float,
    plays: int = PLAYS,
) -> dict[str, dict[str, float]]:
    """Return the figures of each policy; *request_s* is added to each TTFT.

    They are means of some plays in which turns are late by a few milliseconds, as they
    are in the real run. Where engines are short of memory, as little as that decides
    which prompts are still cached, and one play may be far from another.
    """
    trace, sessions = _as_trace(load)
    setting = Setting(
        backends=len(NAMES), capacity_tokens=constants.kv_tokens, batching=constants
    )
    found = {}
    for policy in policies:
        runs = []
        for seed in range(plays):
            tally = Kept(len(NAMES))
            fleet = routed_fleet(policy, setting, trace)(seed)
            fleet.play(Paced(sessions, Random(f"late {seed}")), tally, int)
            runs.append(_figures(tally, request_s, load.system_tokens))
        found[policy] = _summed(runs)
    return found


def _figures(tally: Kept, request_s: float, system_tokens: int) -> dict[str, float]:
    return figures(
        [one.ttft_s + request_s for one in tally.served],
        [one.duration_s + request_s for one in tally.served],
        [one.prompt_tokens for one in tally.served],
        [one.cached_tokens for one in tally.served],
        tally.figures().paid_twice_ratio,
        system_tokens,
    )


def _summed(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each figure, and the least and the most of the mean TTFT."""
    means = {name: fmean(run[name] for run in runs) for name in runs[0]}
    ttfts = [run["ttft_mean_s"] for run in runs]
    return {**means, "least_ttft_mean_s": min(ttfts), "most_ttft_mean_s": max(ttfts)}


def from_records(
    records: Path, policies: Sequence[str], constants: Path, request_s: float
) -> dict[str, dict[str, float]]:
    """Return what the command prints for *records*, with *request_s* added."""
    command = [sys.executable, "-m", "warmroute.proxy.cli", "replay", str(records)]
    command += ["--engine-model", "batching", "--constants", str(constants)]
    command += ["--backends", str(len(NAMES)), "--policy", ",".join(policies), "--json"]
    told = subprocess.run(command, check=True, capture_output=True, text=True)
    return {
        row["policy"]: _row(row, request_s)
        for row in json.loads(told.stdout)["policies"]
    }


def figures(
    ttfts: Sequence[float],
    durations: Sequence[float],
    prompts: Sequence[int],
    cached: Sequence[int],
    paid_twice_ratio: float,
    system_tokens: int,
) -> dict[str, float]:
    """Sum up one run; the system prompt counts in whole blocks, as engines cache."""
    ordered = sorted(ttfts)
    system = system_tokens // BLOCK * BLOCK
    shared = sum(min(one, system) for one in cached)
    return {
        "hit_ratio": sum(cached) / sum(prompts),
        "system_hit_ratio": shared / (system * len(cached)),
        "paid_twice_ratio": paid_twice_ratio,
        "ttft_mean_s": sum(ordered) / len(ordered),
        "ttft_p50_s": percentile(ordered, 0.5),
        "ttft_p99_s": percentile(ordered, 0.99),
        "e2e_mean_s": fmean(durations),
    }


def _row(row: dict[str, Any], request_s: float) -> dict[str, float]:
    ttft = row["ttft_s"]
    return {
        "hit_ratio": row["hit_ratio"],
        "paid_twice_ratio": row["paid_twice_ratio"],
        "ttft_mean_s": ttft["mean"] + request_s,
        "ttft_p50_s": ttft["p50"] + request_s,
        "ttft_p99_s": ttft["p99"] + request_s,
        "e2e_mean_s": row["e2e_s"]["mean"] + request_s,
    }


def _as_trace(load: Load) -> tuple[Trace, list[Session]]:
    """Return the prompts as chained blocks, and the sessions that ask them."""
    ids: dict[tuple[int, tuple[int, ...]], int] = {}
    turns = [(turn, place) for one in load.sessions for place, turn in enumerate(one)]
    requests = [
        TraceRequest(
            0.0, len(turn.prompt), turn.output_tokens, _blocks(turn.prompt, ids)
        )
        for turn, _ in turns
    ]
    trace = Trace(load.name, BLOCK, tuple(requests)).indexed()
    sessions: list[list[Turn]] = []
    for (turn, place), request in zip(turns, trace.requests, strict=True):
        if not place:
            sessions.append([])
        sessions[-1].append(Turn(request, place - 1, turn.think_s))
    return trace, [Session(one) for one in sessions]


def _blocks(
    prompt: Sequence[int], ids: dict[tuple[int, tuple[int, ...]], int]
) -> tuple[int, ...]:
    blocks, parent = [], -1
    for end in range(BLOCK, len(prompt) + 1, BLOCK):
        parent = ids.setdefault((parent, tuple(prompt[end - BLOCK : end])), len(ids))
        blocks.append(parent)
    return tuple(blocks)


def read_constants(path: Path) -> tuple[EngineConstants, float]:
    """Return the engine's constants and what a request costs beside its steps."""
    known = json.loads(path.read_bytes())
    request_s = known.pop("request_s", 0.0)
    return msgspec.convert(known, EngineConstants), request_s
