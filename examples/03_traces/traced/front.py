"""warmroute as a child process, with its spans sent to a collector."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from warmroute.proxy.demo.child import Child, free_port

CONFIG = Path(__file__).parents[1] / "config.yaml"


@asynccontextmanager
async def traced_front(
    engine_url: str,
    collector: str,
    model: tuple[str, str],
    folder: Path,
    http: aiohttp.ClientSession,
) -> AsyncIterator[str]:
    """Run warmroute in front of an engine, for the length of the block.

    Args:
        engine_url: The engine.
        collector: Where its spans go.
        model: Its name, and its tokenizer.
        folder: Where its log is.
        http: Asks it whether it is ready.
    """
    listen = f"127.0.0.1:{free_port()}"
    url = f"http://{listen}"
    environ = _environ(LISTEN=listen, ENGINE_A=engine_url, COLLECTOR=collector)
    environ |= {"MODEL": model[0], "TOKENIZER": model[1]}

    async def is_ready() -> bool:
        try:
            async with http.get(f"{url}/readyz") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    child = Child("warmroute", folder / "warmroute.log")
    command = (sys.executable, "-m", "warmroute.proxy.cli", "serve")
    try:
        await child.start((*command, "-c", str(CONFIG)), environ)
        await child.ready(is_ready)
        yield url
    finally:
        await child.stop()


def _environ(**filled: str) -> dict[str, str]:
    """Return what the configuration's variables stand for; spans are sent soon."""
    environ = {name: v for name, v in os.environ.items() if name[:5] != "WARMR"}
    admin = f"127.0.0.1:{free_port()}"
    return {**environ, "ADMIN": admin, "OTEL_BSP_SCHEDULE_DELAY": "200", **filled}
