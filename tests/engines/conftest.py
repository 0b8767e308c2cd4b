"""Two real vLLM engines with a tiny model, run by the example's own code."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

EXAMPLE = Path(__file__).parents[2] / "examples" / "01_two_vllm"
sys.path.insert(0, str(EXAMPLE))

from engines.vllm_plugin_shared import plugged  # noqa: E402, F401
from two_vllm.engines import Engine, EngineOptions, running_engines  # noqa: E402
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


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engines(
    engine_options: EngineOptions,
    http: aiohttp.ClientSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[list[Engine]]:
    folder = tmp_path_factory.mktemp("engines")
    async with running_engines(engine_options, ("a", "b"), folder, http) as pair:
        await warm_up(pair, MODEL, http)
        yield pair
