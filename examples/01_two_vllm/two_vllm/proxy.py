"""Run ``warmroute serve`` as a child process."""

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from two_vllm.command import log_tail
from two_vllm.engines import EngineView, free_port
from two_vllm.errors import ExampleError

CONFIG = Path(__file__).parent.parent / "config.yaml"
_START_S = 30.0
_STOP_S = 10.0


class Warmroute:
    """A running warmroute: its two ports and its process."""

    __slots__ = ("_log", "_process", "admin_url", "url")

    def __init__(self, log: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.admin_url = f"http://127.0.0.1:{free_port()}"
        self._log = log
        self._process: Process | None = None

    def __repr__(self) -> str:
        return f"<Warmroute {self.url}>"

    async def start(self, policy: str, engines: Sequence[EngineView]) -> None:
        """Launch the process with the example's config."""
        environ = {
            **_clean_environ(),
            "POLICY": policy,
            "LISTEN": self.url.removeprefix("http://"),
            "ADMIN": self.admin_url.removeprefix("http://"),
            "ENGINE_A": engines[0].url,
            "ENGINE_B": engines[1].url,
        }
        command = ("-m", "warmroute.proxy.cli", "serve", "-c", str(CONFIG))
        with self._log.open("ab") as sink:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=environ,
                start_new_session=True,
            )

    async def ready(self, http: aiohttp.ClientSession) -> None:
        """Wait until both backends are up.

        Raises:
            ExampleError: it ended or took too long; quotes its log's end.
        """
        deadline = time.monotonic() + _START_S
        while not await self._all_up(http):
            if self._process is None or self._process.returncode is not None:
                raise ExampleError(self._failure("ended while starting"))
            if time.monotonic() > deadline:
                raise ExampleError(self._failure(f"not ready in {_START_S:.0f} s"))
            await asyncio.sleep(0.1)

    async def state(self, http: aiohttp.ClientSession) -> dict[str, Any]:
        """Return what the admin port tells."""
        async with http.get(f"{self.admin_url}/api/state") as answer:
            content: dict[str, Any] = await answer.json()
            return content

    async def stop(self) -> int | None:
        """End the process and return its exit code."""
        if self._process is None:
            return None
        try:
            if self._process.returncode is None:
                self._process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(_STOP_S):
                await self._process.wait()
        except TimeoutError:
            pass
        finally:
            if self._process.returncode is None:
                self._process.kill()
        return await self._process.wait()

    async def _all_up(self, http: aiohttp.ClientSession) -> bool:
        try:
            state = await self.state(http)
        except (aiohttp.ClientError, TimeoutError):
            return False
        return all(backend["state"] == "up" for backend in state["backends"])

    def _failure(self, what: str) -> str:
        return (
            f"warmroute {what}; its log is {self._log} and ends with:\n"
            f"{log_tail(self._log)}"
        )


@asynccontextmanager
async def running_warmroute(
    policy: str, engines: Sequence[EngineView], log: Path, http: aiohttp.ClientSession
) -> AsyncIterator[Warmroute]:
    """Run warmroute in front of *engines* for the length of the block."""
    warmroute = Warmroute(log)
    try:
        await warmroute.start(policy, engines)
        await warmroute.ready(http)
        yield warmroute
    finally:
        await warmroute.stop()


def _clean_environ() -> Mapping[str, str]:
    """Return the environment without variables that would change the config."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("WARMROUTE_")
    }
