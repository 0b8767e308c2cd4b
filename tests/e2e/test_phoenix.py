"""A trace of client, warmroute and vLLM in a real UI, as a browser shows it.

Opt-in: WARMROUTE_E2E=1. Makes environments of 5 GB with Phoenix and vLLM when missing.
"""

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from integration.browser import browsing

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "03_traces"))
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "01_two_vllm"))

from traced.phoenix_env import ensure_phoenix
from traced.stack import ENGINE_SPAN, Stack, running_stack
from two_vllm.engines import EngineOptions
from two_vllm.environment import ensure_environment
from two_vllm.models import ensure_tiny

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not os.environ.get("WARMROUTE_E2E"), reason="opt-in: set WARMROUTE_E2E=1"
    ),
]
SHOWN = (
    *("ask a question", "POST /v1/chat/completions", "warmroute.route"),
    *("chat tiny", ENGINE_SPAN),
)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def stack(http: aiohttp.ClientSession, tmp_path: Path) -> AsyncIterator[Stack]:
    environment = ensure_environment()
    options = EngineOptions(environment, ensure_tiny(environment), "tiny", 700)
    async with running_stack(ensure_phoenix(), options, tmp_path, http) as running:
        yield running


async def test_phoenix_shows_one_tree(
    stack: Stack, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """All five spans hang together in its store, and are on its page."""
    trace_id = await stack.converse(http)
    spans = {one["name"]: one for one in await stack.arrived(trace_id)}
    assert set(spans) == set(SHOWN)
    parents = {name: one["parent_id"] for name, one in spans.items()}
    ids = {name: one["context"]["span_id"] for name, one in spans.items()}
    assert parents[SHOWN[0]] is None
    assert parents[SHOWN[1]] == ids[SHOWN[0]]
    assert parents["warmroute.route"] == parents["chat tiny"] == ids[SHOWN[1]]
    assert parents[ENGINE_SPAN] == ids["chat tiny"]
    async with browsing(tmp_path / "browser") as browser:
        await browser.resize(1440, 1000)
        await browser.get(stack.phoenix.page(trace_id, spans["chat tiny"]))
        for name in SHOWN:
            text = "document.body.innerText.includes(arguments[0])"
            await browser.until(text, name, timeout_s=60)
        (tmp_path / "phoenix.png").write_bytes(await browser.shoot())
