"""A real warmroute process, its log, and the engines that a test puts behind it."""

import asyncio
import json
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from conformance.raw_engine import RawEngine, Script
from conformance.rig import PATIENCE_S, Client, Reply

COMMAND = (sys.executable, "-m", "warmroute.proxy.cli", "serve")
SETTINGS: dict[str, Any] = {
    "listen": "127.0.0.1:0",
    "admin": "127.0.0.1:0",
    "policy": "least_requests",
    "health": {"interval_s": 0.2, "timeout_s": 30},
    "drain": {"delay_s": 0, "timeout_s": 30},
}


class Served:
    """One `warmroute serve`, started from a file that the test can rewrite."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self.settings = {**SETTINGS, **settings}
        self.log: list[dict[str, Any]] = []
        self.clients: list[Client] = []
        self.stderr = ""
        self._logged = asyncio.Condition()
        self._process: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def write(self, **changes: Any) -> None:
        """Write the file anew, with these settings changed."""
        self.settings.update(changes)
        self.path.write_text(yaml.safe_dump(self.settings))

    async def spawn(self, environ: Mapping[str, str]) -> None:
        """Start the process; its addresses are known once it logs `started`."""
        self._process = await asyncio.create_subprocess_exec(
            *(*COMMAND, "-c", str(self.path)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **environ},
        )
        self._readers = [
            asyncio.create_task(self._read_log()),
            asyncio.create_task(self._read_errors()),
        ]

    async def _read_log(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            async with self._logged:
                self.log.append(json.loads(line))
                self._logged.notify_all()

    async def _read_errors(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        self.stderr = (await self._process.stderr.read()).decode()

    def count(self, event: str, **facts: Any) -> int:
        """Count the log lines of an event with these facts."""
        wanted = {"event": event, **facts}
        return sum(wanted.items() <= _hashable(line).items() for line in self.log)

    async def logged(self, event: str, num: int = 1, **facts: Any) -> dict[str, Any]:
        """Wait for the *num*-th line of an event; returns the newest one."""
        wanted = {"event": event, **facts}
        try:
            async with asyncio.timeout(PATIENCE_S), self._logged:
                await self._logged.wait_for(lambda: self.count(event, **facts) >= num)
        except TimeoutError:
            pytest.fail(f"not logged: {wanted}\n{self.log}\n{self.stderr}")
        lines = (one for one in reversed(self.log))
        return next(o for o in lines if wanted.items() <= _hashable(o).items())

    async def ready(self, backends: int) -> "Served":
        """Wait until it listens and as many backends are up."""
        await self.logged("started")
        await self.logged("backend_up", backends)
        return self

    def address(self, which: str) -> tuple[str, int]:
        line = next(one for one in self.log if one["event"] == "started")
        host, port = line[which].rsplit(":", 1)
        return host, int(port)

    async def connect(self, tls: ssl.SSLContext | None = None) -> Client:
        host, port = self.address("listen")
        streams = await asyncio.open_connection(host, port, ssl=tls, limit=1 << 26)
        self.clients.append(Client(*streams))
        return self.clients[-1]

    async def request(self, data: bytes) -> Reply:
        """Send one request on a connection of its own."""
        client = await self.connect()
        await client.send(data)
        return await client.receive()

    async def get(self, path: str) -> Reply:
        return await self.request(f"GET {path} HTTP/1.1\r\nHost: p\r\n\r\n".encode())

    async def admin(
        self, path: str, method: str = "GET", **options: Any
    ) -> tuple[int, Any]:
        """Ask the admin port; returns status and JSON, or text of `/metrics`."""
        if self._session is None:
            self._session = aiohttp.ClientSession()
        host, port = self.address("admin")
        url = f"http://{host}:{port}{path}"
        if method == "POST":
            options.setdefault("json", {})
        async with self._session.request(method, url, **options) as response:
            if response.content_type == "application/json":
                return response.status, await response.json()
            return response.status, await response.text()

    async def until(
        self, path: str, holds: Callable[[Any], bool], timeout_s: float = PATIENCE_S
    ) -> Any:
        """Ask the admin port until its answer *holds*."""
        answer: Any = None
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    _, answer = await self.admin(path)
                    if holds(answer):
                        return answer
                    await asyncio.sleep(0.01)
        except TimeoutError:
            pytest.fail(f"{path} still says: {answer}\n{self.log[-5:]}")

    async def deaf(self) -> None:
        """Wait until new connections are refused."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    (await self.connect()).close()
                    await asyncio.sleep(0.02)
        except ConnectionRefusedError:
            return

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self) -> int:
        """Wait for the end of the process; returns its exit code."""
        assert self._process is not None
        try:
            async with asyncio.timeout(PATIENCE_S):
                code = await self._process.wait()
                await asyncio.gather(*self._readers)
        except TimeoutError:
            pytest.fail(f"still running after {PATIENCE_S:.0f} s\n{self.log}")
        return code

    async def close(self) -> None:
        for client in self.clients:
            client.close()
        if self._session is not None:
            await self._session.close()
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        if self._process is not None:
            await self.ended()


class Stage:
    """Start engines and processes, and end them with the test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.engines: list[RawEngine] = []
        self.started: list[Served] = []

    async def engine(self, script: Script, *models: str) -> RawEngine:
        engine = RawEngine(script, [*(models or ("m",))])
        self.engines.append(await engine.start())
        return engine

    async def spawn(
        self,
        *engines: RawEngine,
        environ: Mapping[str, str] = {},
        path: Path | None = None,
        **settings: Any,
    ) -> Served:
        """Start a process in front of *engines*; does not wait for it."""
        backends = [entry(f"b{at}", engine) for at, engine in enumerate(engines)]
        if engines:
            settings.setdefault("backends", backends)
        path = path or self._directory / f"config{len(self.started)}.yaml"
        served = Served(path, settings)
        served.write()
        self.started.append(served)
        await served.spawn(environ)
        return served

    async def serve(self, *engines: RawEngine, **settings: Any) -> Served:
        """Start a process in front of *engines* and wait until all are up."""
        return await (await self.spawn(*engines, **settings)).ready(len(engines))

    async def close(self) -> None:
        for served in self.started:
            await served.close()
        for engine in self.engines:
            await engine.stop()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """Give a test its stage."""
    stage = Stage(tmp_path)
    yield stage
    await stage.close()


def entry(name: str, engine: RawEngine, **more: Any) -> dict[str, Any]:
    """Write the configuration entry of an engine."""
    return {"name": name, "url": engine.url, "engine": "openai", **more}


def _hashable(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if not isinstance(value, list)}
