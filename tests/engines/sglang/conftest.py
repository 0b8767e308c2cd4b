"""A real SGLang with a tiny model, for `make test-sglang` alone.

SGLang supports no CPU without AMX; what makes it run here is fragile, so nothing but
an explicit wish (``SGLANG_TESTS=1``) starts it.
"""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from engines.sglang.engine import SGLangEngine, SGLangOptions
from engines.sglang.make_env import ensure_environment
from two_vllm.models import ensure_tiny

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder unless they are wished for."""
    if os.environ.get("SGLANG_TESTS"):
        return
    skip = pytest.mark.skip(reason="run it with make test-sglang")
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def sglang_options(tmp_path_factory: pytest.TempPathFactory) -> SGLangOptions:
    environment = ensure_environment()
    folder = tmp_path_factory.mktemp("sglang")
    return SGLangOptions(environment, ensure_tiny(environment), folder)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def sglang_http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def sglang(
    sglang_options: SGLangOptions, sglang_http: aiohttp.ClientSession
) -> AsyncIterator[SGLangEngine]:
    """Return the one stock engine of the session."""
    async with SGLangEngine(sglang_options, sglang_http) as engine:
        yield engine
