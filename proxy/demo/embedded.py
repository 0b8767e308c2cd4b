"""Run ``warmroute engine`` as child processes, for the length of a block."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from warmroute.proxy.demo.child import Child, free_port
from warmroute.proxy.demo.engine_view import EngineView
from warmroute.proxy.demo.progress import Step

# The first start may fetch a model.
_START_S = 180.0
_TOKEN = "WARMROUTE_ENGINE_TOKEN"  # noqa: S105 - a name, no secret


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the engines of one demo have in common.

    Args:
        num_blocks: Blocks of the KV pool.
        model: As ``warmroute engine --model`` takes it; None is its default.
        threads: Threads of one engine's arithmetic.
        step_tokens: Tokens computed in one step; None is its default.
    """

    num_blocks: int
    model: str | None = None
    threads: int = 1
    step_tokens: int | None = None


@asynccontextmanager
async def running_engines(
    options: EngineOptions,
    names: Sequence[str],
    folder: Path,
    http: aiohttp.ClientSession,
) -> AsyncIterator[list[EngineView]]:
    """Run one engine a name, ready to serve, for the length of the block.

    Raises:
        DemoError: One did not start; quotes its log's end.
    """
    views = [EngineView(name, _fresh_url(), http) for name in names]
    children = [
        Child(f"engine {view.name}", folder / f"engine-{view.name}.log", _START_S)
        for view in views
    ]
    try:
        with Step(f"starting {len(views)} engines") as step:
            for child, view in zip(children, views, strict=True):
                await child.start(_command(options, view), _environ())
                await child.ready(view.is_healthy, step.tick)
        yield views
    finally:
        await asyncio.gather(*(child.stop() for child in children))


def _environ() -> dict[str, str]:
    """Return the environment without a token, which nobody here would bring."""
    return {name: value for name, value in os.environ.items() if name != _TOKEN}


def _fresh_url() -> str:
    return f"http://127.0.0.1:{free_port()}"


def _command(options: EngineOptions, view: EngineView) -> Sequence[str]:
    command = [sys.executable, "-m", "warmroute.proxy.cli", "engine"]
    command += ["--port", view.url.rpartition(":")[2]]
    command += ["--num-blocks", str(options.num_blocks)]
    command += ["--threads", str(options.threads)]
    command += ["--kv-events", f"tcp://*:{free_port()}"]
    command += ["--kv-events-replay", f"tcp://*:{free_port()}"]
    if options.step_tokens is not None:
        command += ["--max-batched-tokens", str(options.step_tokens)]
    return command if options.model is None else [*command, "--model", options.model]
