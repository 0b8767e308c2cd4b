"""How far the requests of an engine of the tests are, and how fast it goes on."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from engines.vllm_plugin_rig import PluginEngine

STEP_S = 0.05


async def post(engine: PluginEngine, path: str, body: Any = None) -> Any:
    async with engine.http.post(f"{engine.url}/{path}", json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def worker(
    engine: PluginEngine, method: str, arguments: Sequence[float] = ()
) -> dict[str, int]:
    """Have the worker do what only tests ask for."""
    body = {"method": method, "args": list(arguments)}
    told = await post(engine, "collective_rpc", body)
    found: dict[str, int] = told["results"][0]
    return found


@asynccontextmanager
async def slowly(engine: PluginEngine) -> AsyncIterator[None]:
    """Have steps take a twentieth of a second for the length of the block.

    The tiny model needs three milliseconds a step, and vLLM's processes spin while they
    wait for each other: a test may get no processor for seconds, on which hundreds of
    tokens are generated. So what has to happen within a request would come too late.
    """
    await worker(engine, "slow_down", [STEP_S])
    try:
        yield
    finally:
        await worker(engine, "slow_down", [0])


async def position(engine: PluginEngine, name: str) -> int:
    """Return which token of a request was computed last."""
    found = await worker(engine, "last_positions")
    return next((at for inside, at in found.items() if name in inside), 0)


async def runs(engine: PluginEngine, name: str, task: asyncio.Task[Any]) -> None:
    """Wait until some of a request is computed, and it has not ended."""
    while not await position(engine, name):
        assert not task.done(), f"{name} ended before anyone saw it run"


async def pause(engine: PluginEngine) -> None:
    await post(engine, "pause?mode=keep&clear_cache=false")
