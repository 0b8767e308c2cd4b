"""Play the same chats under each policy, print the table, and stay up."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from warmroute.proxy.demo.compare import (
    Outcome,
    Workload,
    cold_front,
    play,
    run_policy,
    warm_up,
)
from warmroute.proxy.demo.engine_view import EngineView
from warmroute.proxy.demo.errors import DemoError
from warmroute.proxy.demo.front import Front, running_front
from warmroute.proxy.demo.report import as_json, is_good, table, verdict
from warmroute.proxy.demo.standing import standing

POLICIES = ("round_robin", "expected_ttft")


@dataclass(frozen=True, slots=True)
class Show:
    """What is shown on running engines.

    Args:
        workload: The chats, and how they are played.
        policies: Routing policies in order; the front of the last one stays up.
        stays_up: Go on serving after the table, until interrupted.
        is_json: Print JSON instead of the table.
    """

    workload: Workload
    policies: Sequence[str] = POLICIES
    stays_up: bool = False
    is_json: bool = False

    async def run(
        self, engines: Sequence[EngineView], folder: Path, http: aiohttp.ClientSession
    ) -> int:
        """Play, print and return the exit code; logs go to *folder*.

        The front of the last policy stays up, with all that it has seen.
        """
        await warm_up(engines, self.workload.model, http)
        *earlier, last = self.policies
        outcomes = [
            await run_policy(policy, self.workload, engines, folder, http)
            for policy in earlier
        ]
        async with cold_front(last, self.workload, engines, folder, http) as front:
            outcomes.append(await play(last, self.workload, engines, front, http))
            self._print(outcomes)
            if self.stays_up and front:
                await self._stay_up(last, front, engines)
        if self.stays_up and not front:
            await self._start_one(engines, folder, http)
        return 0 if is_good(outcomes) else 1

    def _print(self, outcomes: Sequence[Outcome]) -> None:
        if self.is_json:
            print(as_json(outcomes), flush=True)
        else:
            print(f"\n{table(outcomes)}\n\n{verdict(outcomes)}", flush=True)

    async def _start_one(
        self, engines: Sequence[EngineView], folder: Path, http: aiohttp.ClientSession
    ) -> None:
        """Stay up behind a replay without warmroute."""
        policy = POLICIES[-1]
        log = folder / f"warmroute-{policy}.log"
        setup = self.workload.setup
        async with running_front(policy, engines, log, http, setup) as front:
            await self._stay_up(policy, front, engines)

    async def _stay_up(
        self, policy: str, front: Front, engines: Sequence[EngineView]
    ) -> None:
        """Tell the addresses, and wait for Ctrl-C: here that is the good end."""
        print(f"\n{standing(policy, front, engines, self.workload.model)}", flush=True)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            print("\nstopping", file=sys.stderr)


async def model_name(engine: EngineView, http: aiohttp.ClientSession) -> str:
    """Return the first model that *engine* serves.

    Raises:
        DemoError: Nobody answers there.
    """
    try:
        async with http.get(f"{engine.url}/v1/models") as answer:
            return str((await answer.json())["data"][0]["id"])
    except aiohttp.ClientError as error:
        raise DemoError(f"no engine answers at {engine.url}: {error}") from error
