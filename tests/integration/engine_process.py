"""The embedded engine for tests: inside the test, or as a process of its own."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from warmroute.adapters.embedded.budget.rules import TokenRules
from warmroute.adapters.embedded.engine.engine import Engine
from warmroute.adapters.embedded.engine.options import EngineOptions
from warmroute.adapters.embedded.model.loading import load_model
from warmroute.adapters.embedded.server.app import build_app
from warmroute.adapters.embedded.server.listener import Listener
from warmroute.adapters.embedded.server.metrics import EngineMetrics
from warmroute.adapters.embedded.server.serving import Serving

RUN = """
import argparse, sys
from warmroute.adapters.embedded.command import EngineCommand
parser = argparse.ArgumentParser()
command = EngineCommand()
command.add_arguments(parser)
sys.exit(command.run(parser.parse_args()))
"""


class TinyEngine:
    """The tiny model behind the real server, in this process."""

    def __init__(self, engine: Engine, listener: Listener) -> None:
        self.engine = engine
        self.url = listener.url
        self.session = aiohttp.ClientSession(listener.url)

    async def post(self, path: str, **body: Any) -> dict[str, Any]:
        """Send a body; returns the JSON of a good answer."""
        async with self.session.post(path, json=body) as response:
            answer: dict[str, Any] = await response.json()
            assert response.status == 200, answer
            return answer

    async def metric(self, name: str) -> float:
        """Scrape the value of the only sample of *name*."""
        async with self.session.get("/metrics") as response:
            page = await response.text()
        (value,) = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.M)
        return float(value)

    async def referenced(self) -> int:
        """Count the pages that sequences hold."""
        return await self.engine.call(lambda state: state.pool.num_referenced)


@asynccontextmanager
async def serve_tiny(**options: Any) -> AsyncIterator[TinyEngine]:
    """Serve the tiny model on a free port."""
    loaded = load_model("tiny")
    metrics = EngineMetrics("tiny")
    settings = EngineOptions(**{"num_blocks": 128, **options})
    engine = Engine(loaded, settings, observer=metrics, rules=TokenRules())
    listener = Listener("127.0.0.1", 0)
    await engine.start()
    serving = Serving(engine, loaded.tokenizer, ("tiny",), "0")
    await listener.start(build_app(serving, metrics))
    tiny = TinyEngine(engine, listener)
    try:
        yield tiny
    finally:
        await tiny.session.close()
        await listener.close()
        await engine.close()


class EngineRun:
    """One run of the command, with the tiny model."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.ready = ""

    @property
    def url(self) -> str:
        (url,) = re.findall(r"http://\S+", self.ready)
        return str(url)

    async def until_ready(self) -> "EngineRun":
        """Wait for the line that says it serves."""
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            self.ready = (await self._process.stdout.readline()).decode()
        if not self.ready:
            pytest.fail(f"it ended: {(await self.ended())[1]}")
        return self

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ended(self) -> tuple[int, str]:
        """Wait for its end; returns exit code and standard error."""
        async with asyncio.timeout(60):
            _, error = await self._process.communicate()
        assert self._process.returncode is not None
        return self._process.returncode, error.decode()

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.communicate()


@asynccontextmanager
async def run_engine(*arguments: str) -> AsyncIterator[EngineRun]:
    """Run the command with these arguments; does not wait for it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", RUN, "--model", "tiny", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    run = EngineRun(process)
    try:
        yield run
    finally:
        await run.kill()
