"""Play a load through a real warmroute to three running engines, and count."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from loads import Load, Turn

from warmroute.proxy.demo.child import Child, free_port
from warmroute.proxy.demo.engine_view import EngineView
from warmroute.proxy.demo.progress import Step

NAMES = ("a", "b", "c")
BLOCK = 16
MAX_BATCHED_TOKENS = 512
MAX_SEQUENCES = 16
VOCABULARIES = {"timed": 50_000, "smollm2": 49_000, "tiny": 250}
MODELS = {"timed": "timed", "smollm2": "smollm2-135m", "tiny": "tiny"}

_HERE = Path(__file__).parent
_COMMAND = (sys.executable, "-m", "warmroute.proxy.cli")
_START_S = 180.0
_READ_S = 300.0


@dataclass(frozen=True, slots=True)
class Engines:
    """What the engines are.

    Attributes:
        kind: ``timed``, or the model that they run.
        num_blocks: Blocks of each.
        constants: File that tells timed ones how long a step takes.
    """

    kind: str
    num_blocks: int
    constants: Path

    @property
    def model(self) -> str:
        """Return what requests call the model."""
        return MODELS[self.kind]

    def command(self, port: int) -> list[str]:
        """Return the command line of one engine."""
        if self.kind == "timed":
            command = [sys.executable, str(_HERE / "timed_engine.py")]
            command += ["--constants", str(self.constants)]
        else:
            command = [*_COMMAND, "engine"]
            command += ["--threads", "1"]
            command += ["--model", "tiny"] if self.kind == "tiny" else []
        command += ["--port", str(port)]
        command += ["--num-blocks", str(self.num_blocks), "--block-size", str(BLOCK)]
        command += ["--max-num-seqs", str(MAX_SEQUENCES)]
        command += ["--max-batched-tokens", str(MAX_BATCHED_TOKENS)]
        command += ["--kv-events", f"tcp://*:{free_port()}"]
        return [*command, "--kv-events-replay", f"tcp://*:{free_port()}"]


@dataclass(slots=True)
class Answer:
    """What came of one request; *ttft_s* is None where nothing came."""

    prompt_tokens: int
    ttft_s: float | None = None
    duration_s: float = 0.0
    cached_tokens: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """One policy's run, by what clients saw and engines counted."""

    answers: list[Answer]
    queried_tokens: int
    hit_tokens: int
    finished_of_each: list[int]
    paid_twice_ratio: float
    duration_s: float


@asynccontextmanager
async def running_engines(
    engines: Engines, folder: Path, http: aiohttp.ClientSession
) -> AsyncIterator[list[EngineView]]:
    """Run three of them, each of which has answered once."""
    async with AsyncExitStack() as stack:
        views = []
        with Step("starting 3 engines") as step:
            for name in NAMES:
                port = free_port()
                view = EngineView(name, f"http://127.0.0.1:{port}", http)
                child = Child(f"engine {name}", folder / f"{name}.log", _START_S)
                stack.push_async_callback(child.stop)
                await child.start(engines.command(port))
                await child.ready(view.is_healthy, step.tick)
                views.append(view)
            for view in views:
                turn = Turn(0.0, tuple(range(16, 116)), 4)
                answer = await ask(http, view.url, engines.model, turn)
                if answer.error:
                    raise SystemExit(f"engine {view.name}: {answer.error}")
        yield views


async def measure(
    policy: str,
    load: Load,
    model: str,
    views: Sequence[EngineView],
    folder: Path,
    http: aiohttp.ClientSession,
) -> Measured:
    """Empty the caches, play *load* under *policy*, and account."""
    for view in views:
        await view.settled()
        await view.flush()
    before = [await view.counters() for view in views]
    async with _running_front(policy, views, folder, http) as (url, admin):
        with Step(f"{load.name} under {policy}") as step:
            answers = await _play(load, url, model, step, http)
            duration_s = step.elapsed_s
        after = [await view.settled() for view in views]
        async with http.get(f"{admin}/api/state") as told:
            state = await told.json()
    deltas = [late.since(early) for early, late in zip(before, after, strict=True)]
    return Measured(
        answers,
        sum(one.queried_tokens for one in deltas),
        sum(one.hit_tokens for one in deltas),
        [one.finished for one in deltas],
        state["paid_twice_ratio"],
        duration_s,
    )


@asynccontextmanager
async def _running_front(
    policy: str, views: Sequence[EngineView], folder: Path, http: aiohttp.ClientSession
) -> AsyncIterator[tuple[str, str]]:
    listen, admin = (f"127.0.0.1:{free_port()}" for _ in range(2))
    config = {
        "listen": listen,
        "admin": admin,
        "policy": {"name": policy},
        "backends": [{"name": view.name, "url": view.url} for view in views],
        "records": {"path": f"access-{policy}.jsonl", "tokens_per_hash": BLOCK},
        "drain": {"delay_s": 0, "timeout_s": 5},
    }
    path = folder / f"{policy}.json"
    path.write_text(json.dumps(config))
    child = Child("warmroute", folder / f"warmroute-{policy}.log", _START_S)
    try:
        await child.start((*_COMMAND, "serve", "-c", str(path)))
        await child.ready(lambda: _is_live(f"http://{admin}", http))
        yield f"http://{listen}", f"http://{admin}"
    finally:
        await child.stop()


async def _is_live(admin: str, http: aiohttp.ClientSession) -> bool:
    try:
        async with http.get(f"{admin}/api/state") as answer:
            backends = (await answer.json())["backends"]
    except (aiohttp.ClientError, TimeoutError):
        return False
    return all(one["view"].get("status") == "live" for one in backends)


async def _play(
    load: Load, url: str, model: str, step: Step, http: aiohttp.ClientSession
) -> list[Answer]:
    answers: list[Answer] = []

    async def run(session: Sequence[Turn]) -> None:
        for turn in session:
            await asyncio.sleep(turn.think_s)
            answers.append(await ask(http, url, model, turn))
            step.count(len(answers), load.num_requests)

    async with asyncio.TaskGroup() as group:
        for session in load.sessions:
            group.create_task(run(session))
    return answers


async def ask(http: aiohttp.ClientSession, url: str, model: str, turn: Turn) -> Answer:
    """Send one request; what goes wrong is in the answer."""
    answer = Answer(len(turn.prompt))
    body = {
        "model": model,
        "prompt": turn.prompt,
        "max_tokens": turn.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    timeout = aiohttp.ClientTimeout(total=None, sock_read=_READ_S)
    sent_at = time.monotonic()
    try:
        async with http.post(
            f"{url}/v1/completions", json=body, timeout=timeout
        ) as response:
            if response.status != 200:
                answer.error = f"{response.status} {(await response.text())[:200]}"
                return answer
            async for line in response.content:
                if line.startswith(b"data: {"):
                    _take(json.loads(line[6:]), sent_at, answer)
        answer.duration_s = time.monotonic() - sent_at
    except (aiohttp.ClientError, TimeoutError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    if answer.ttft_s is None and answer.error is None:
        answer.error = "no token came"
    return answer


def _take(event: dict[str, Any], sent_at: float, answer: Answer) -> None:
    if "error" in event:
        answer.error = f"error event: {event['error'].get('message')}"
        return
    if event["choices"] and answer.ttft_s is None:
        answer.ttft_s = time.monotonic() - sent_at
    usage = event.get("usage")
    if usage:
        details = usage.get("prompt_tokens_details") or {}
        answer.cached_tokens = details.get("cached_tokens") or 0
