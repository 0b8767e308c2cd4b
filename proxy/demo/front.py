"""Run ``warmroute serve`` as a child process, in front of a demo's engines."""

import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from warmroute.proxy.demo.child import Child, free_port
from warmroute.proxy.demo.engine_view import EngineView

CONFIG = Path(__file__).parent / "data" / "config.yaml"
"""The demo's configuration; its variables are set below."""

DEFAULT_PORTS = (8080, 9090)
"""Where ``warmroute serve`` listens, and where its admin port is, unless told."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How warmroute is configured in front of a demo's engines.

    Args:
        config: The file.
        model: Name of the model, for its tokenizer.
        tokenizer: As ``models[].tokenizer`` takes it.
        ports: Where to listen, and for the admin port; others where those are taken.
            0 takes any.
    """

    config: Path = CONFIG
    model: str = "default"
    tokenizer: str = "none"
    ports: tuple[int, int] = (0, 0)


class Front:
    """A running warmroute: its two ports, those it could not have, its process."""

    __slots__ = ("_child", "_setup", "admin_url", "taken", "url")

    def __init__(self, log: Path, setup: Setup) -> None:
        ports = [free_port(wanted) for wanted in setup.ports]
        self.url, self.admin_url = (f"http://127.0.0.1:{port}" for port in ports)
        self.taken = [
            wanted
            for wanted, port in zip(setup.ports, ports, strict=True)
            if wanted not in (0, port)
        ]
        self._setup = setup
        self._child = Child("warmroute", log)

    def __repr__(self) -> str:
        return f"<Front {self.url}>"

    async def start(self, policy: str, engines: Sequence[EngineView]) -> None:
        """Launch the process in front of two engines."""
        environ = {
            **_clean_environ(),
            "POLICY": policy,
            "LISTEN": self.url.removeprefix("http://"),
            "ADMIN": self.admin_url.removeprefix("http://"),
            "ENGINE_A": engines[0].url,
            "ENGINE_B": engines[1].url,
            "MODEL": self._setup.model,
            "TOKENIZER": self._setup.tokenizer,
        }
        command = (sys.executable, "-m", "warmroute.proxy.cli", "serve")
        await self._child.start((*command, "-c", str(self._setup.config)), environ)

    async def ready(self, http: aiohttp.ClientSession) -> None:
        """Wait until both backends are up.

        Raises:
            DemoError: It ended or took too long; quotes its log's end.
        """

        async def all_up() -> bool:
            try:
                backends = (await self.state(http))["backends"]
            except (aiohttp.ClientError, TimeoutError):
                return False
            return all(backend["state"] == "up" for backend in backends)

        await self._child.ready(all_up)

    async def state(self, http: aiohttp.ClientSession) -> dict[str, Any]:
        """Return what the admin port tells."""
        async with http.get(f"{self.admin_url}/api/state") as answer:
            content: dict[str, Any] = await answer.json()
            return content

    async def stop(self) -> int | None:
        """End the process and return its exit code."""
        return await self._child.stop()


@asynccontextmanager
async def running_front(
    policy: str,
    engines: Sequence[EngineView],
    log: Path,
    http: aiohttp.ClientSession,
    setup: Setup = Setup(),
) -> AsyncIterator[Front]:
    """Run warmroute in front of *engines* for the length of the block."""
    front = Front(log, setup)
    try:
        await front.start(policy, engines)
        await front.ready(http)
        yield front
    finally:
        await front.stop()


def _clean_environ() -> Mapping[str, str]:
    """Return the environment without variables that would change the config."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("WARMROUTE_")
    }
