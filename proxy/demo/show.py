"""Play the same chats under each policy, print the table, and stay up."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from warmroute.proxy.demo.compare import DIRECT, Workload, run_policy, warm_up
from warmroute.proxy.demo.engine_view import EngineView
from warmroute.proxy.demo.errors import DemoError
from warmroute.proxy.demo.front import running_front
from warmroute.proxy.demo.report import as_json, is_good, table, verdict

POLICIES = ("round_robin", "expected_ttft")


@dataclass(frozen=True, slots=True)
class Show:
    """What is shown on running engines.

    Args:
        workload: The chats, and how they are played.
        policies: Routing policies in order; the last one stays up.
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
        """Play, print and return the exit code; logs go to *folder*."""
        await warm_up(engines, self.workload.model, http)
        outcomes = [
            await run_policy(policy, self.workload, engines, folder, http)
            for policy in self.policies
        ]
        if self.is_json:
            print(as_json(outcomes), flush=True)
        else:
            print(f"\n{table(outcomes)}\n\n{verdict(outcomes)}", flush=True)
        if self.stays_up:
            await self._stay_up(engines, folder, http)
        return 0 if is_good(outcomes) else 1

    async def _stay_up(
        self, engines: Sequence[EngineView], folder: Path, http: aiohttp.ClientSession
    ) -> None:
        policy = self.policies[-1] if self.policies[-1] != DIRECT else POLICIES[-1]
        log = folder / f"warmroute-{policy}.log"
        setup = self.workload.setup
        async with running_front(policy, engines, log, http, setup) as front:
            print(f"\nwarmroute  {front.url} ({policy})")
            print(f"admin      {front.admin_url}/api/state")
            for engine in engines:
                print(f"engine {engine.name}   {engine.url}")
            print(f"\n{_curl(front.url, self.workload.model)}\n")
            print("Ctrl-C ends it", flush=True)
            await asyncio.Event().wait()


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


def _curl(url: str, model: str) -> str:
    message = {"role": "user", "content": "What is the capital of France?"}
    body = json.dumps({"model": model, "messages": [message], "max_tokens": 16})
    return (
        f"curl -si {url}/v1/chat/completions -H 'content-type: application/json' "
        f"-H 'x-warmroute-explain: 1' -d '{body}'"
    )
