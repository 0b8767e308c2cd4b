"""Two real vLLM engines with a tiny model, run by the example's own code."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path[:0] = [str(EXAMPLES / "01_two_vllm"), str(EXAMPLES / "03_traces")]

from engines.traced_vllm import Traced, launched_traced  # noqa: E402
from engines.vllm_plugin_shared import plugged  # noqa: E402, F401
from two_vllm.engines import (  # noqa: E402
    Engine,
    EngineOptions,
    all_ready,
    launched_engines,
)
from two_vllm.environment import ensure_environment  # noqa: E402
from two_vllm.models import ensure_tiny  # noqa: E402

from warmroute.proxy.demo.compare import warm_up  # noqa: E402

MODEL = "tiny"
# Every byte is a token of the tiny model, so prompts are long: the pool of an
# engine holds about half of the chats that the tests keep open.
NUM_BLOCKS = 700


@pytest.fixture(scope="session")
def engine_options() -> EngineOptions:
    environment = ensure_environment()
    model = ensure_tiny(environment)
    return EngineOptions(environment, model, MODEL, NUM_BLOCKS, max_model_len=16384)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


@dataclass(slots=True)
class Early:
    """What was launched before its tests; None where no test needs it.

    Attributes:
        pair: The two engines of the example.
        traced: One that sends its spans to a collector.
    """

    pair: list[Engine] | None = None
    traced: Traced | None = None


@pytest_asyncio.fixture(scope="session", loop_scope="session", autouse=True)
async def early(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Early]:
    """Launch engines at once that later tests need.

    Each takes one core for more than half a minute until it serves. The tests that
    come first need no engine, and leave the other core to them.
    """
    needed = {name for item in request.session.items for name in names_of(item)}
    found = Early()
    async with AsyncExitStack() as stack:
        if needed & {"engines", "traced"}:
            options: EngineOptions = request.getfixturevalue("engine_options")
            folder = tmp_path_factory.mktemp("engines")
            connector = aiohttp.TCPConnector(limit=0)
            session = aiohttp.ClientSession(connector=connector)
            http = await stack.enter_async_context(session)
        if "engines" in needed:
            pair = launched_engines(options, ("a", "b"), folder, http)
            found.pair = await stack.enter_async_context(pair)
        if "traced" in needed:
            traced = launched_traced(options, folder, http)
            found.traced = await stack.enter_async_context(traced)
        yield found


def names_of(item: pytest.Item) -> Sequence[str]:
    """Return the fixtures that a test needs, directly or not."""
    return item.fixturenames if isinstance(item, pytest.Function) else ()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engines(
    early: Early, http: aiohttp.ClientSession
) -> AsyncIterator[list[Engine]]:
    pair = early.pair
    assert pair is not None
    await all_ready(pair)
    await warm_up(pair, MODEL, http)
    yield pair
    await asyncio.gather(*(engine.stop() for engine in pair))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def traced(early: Early) -> AsyncIterator[Traced]:
    running = early.traced
    assert running is not None
    await running.child.ready(running.view.is_healthy)
    yield running
    await running.child.stop()
