"""Arize Phoenix as a child process: a collector, and the pages that show traces."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from warmroute.proxy.demo.child import Child, free_port
from warmroute.proxy.demo.progress import Step

_START_S = 240.0
_LAUNCHER = Path(__file__).with_name("on_loopback.py")
# The default project, as Phoenix numbers it in its pages.
_PROJECT = "UHJvamVjdDox"


class Phoenix:
    """A running Phoenix on loopback ports."""

    __slots__ = ("_child", "_environment", "_folder", "_http", "url")

    def __init__(
        self, environment: Path, folder: Path, http: aiohttp.ClientSession
    ) -> None:
        self._environment = environment
        self._folder = folder
        self._http = http
        self._child = Child("phoenix", folder / "phoenix.log", _START_S)
        self.url = f"http://127.0.0.1:{free_port()}"

    def __repr__(self) -> str:
        return f"<Phoenix {self.url}>"

    async def start(self) -> None:
        """Launch the process; does not wait until it serves."""
        data = self._folder / "phoenix"
        data.mkdir(exist_ok=True)
        environ = {
            **os.environ,
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": self.url.rpartition(":")[2],
            "PHOENIX_GRPC_PORT": str(free_port()),
            "PHOENIX_WORKING_DIR": str(data),
            "PHOENIX_TELEMETRY_ENABLED": "false",
        }
        python = self._environment / "bin" / "python"
        # -P: this folder has a module of Phoenix's own name.
        await self._child.start((str(python), "-P", str(_LAUNCHER)), environ)

    async def ready(self, step: Step) -> None:
        """Wait until it serves, ticking *step*.

        Raises:
            DemoError: It ended or took too long; quotes its log's end.
        """
        await self._child.ready(self._is_up, step.tick)

    async def _is_up(self) -> bool:
        try:
            async with self._http.get(f"{self.url}/healthz") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def spans(self, trace_id: str) -> list[dict[str, Any]]:
        """Return the spans of a trace that have arrived."""
        url = f"{self.url}/v1/projects/default/spans"
        try:
            async with self._http.get(url, params={"limit": "1000"}) as answer:
                if answer.status != 200:
                    return []
                found = (await answer.json())["data"]
        except (aiohttp.ClientError, TimeoutError):
            return []
        return [one for one in found if one["context"]["trace_id"] == trace_id]

    def page(self, trace_id: str, span: dict[str, Any]) -> str:
        """Return the address of the page that shows a trace, one span opened."""
        page = f"{self.url}/projects/{_PROJECT}/traces/{trace_id}"
        return f"{page}?selectedSpanNodeId={span['id']}"

    async def stop(self) -> None:
        """End the process."""
        await self._child.stop()


@asynccontextmanager
async def running_phoenix(
    environment: Path, folder: Path, http: aiohttp.ClientSession
) -> AsyncIterator[Phoenix]:
    """Run Phoenix for the length of the block; wait for it with `ready`."""
    phoenix = Phoenix(environment, folder, http)
    try:
        await phoenix.start()
        yield phoenix
    finally:
        await phoenix.stop()
