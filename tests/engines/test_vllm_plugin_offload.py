"""Blocks of a real vLLM in host memory and back, by verbs and by requests."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from engines.vllm_plugin_rig import (
    BLOCK,
    LENGTH,
    MOST,
    TOKEN,
    PluginEngine,
    blocks,
    fill,
    prompt,
)
from engines.vllm_plugin_shared import Plugged
from integration.served import Served

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]


@pytest.fixture
def engine(plugged: Plugged) -> PluginEngine:
    return plugged.hosted


async def tiers(engine: PluginEngine) -> dict[str, set[int]]:
    listed = (await engine.kv("snapshot"))["blocks"]
    return {
        tier: {one["hash"] for one in listed if one["tier"] == tier}
        for tier in ("gpu", "host")
    }


async def store(engine: PluginEngine, name: str) -> list[int]:
    """Have a prompt cached and copied; the copies end with the steps behind it."""
    tokens = prompt(name)
    await engine.complete(tokens)
    await engine.complete(prompt(f"{name}-behind", 40))
    return tokens


async def test_both_verbs_are_probed(engine: PluginEngine) -> None:
    verbs = (await engine.kv("capabilities"))["verbs"]
    assert (verbs["offload"], verbs["restore"]) == (True, True)


@pytest.mark.parametrize("way", ["offload", "evict"])
async def test_an_offloaded_prompt_is_served_from_the_host(
    engine: PluginEngine, way: str
) -> None:
    """Evicted, from pages and host, it is computed again."""
    tokens = await store(engine, f"way-{way}")
    told = await engine.kv(way, blocks(tokens))
    if way == "offload":
        assert told == {"changed": 15, "named": 15}
    else:
        assert len(told["evicted"]) == 15
    from_host = await engine.metric("vllm:external_prefix_cache_hits_total")
    # The connector also brings the last block, which pages alone never serve whole.
    expected = LENGTH if way == "offload" else 0
    assert await engine.cached(tokens) == expected
    loaded = await engine.metric("vllm:external_prefix_cache_hits_total") - from_host
    assert loaded == expected


async def test_offload_moves_and_restore_brings_back(engine: PluginEngine) -> None:
    tokens = await store(engine, "there")
    named = set((await engine.kv("evict", blocks(prompt("never"))))["evicted"])
    assert not named
    before = await tiers(engine)
    assert (await engine.kv("offload", blocks(tokens)))["changed"] == 15
    away = await tiers(engine)
    gone = before["gpu"] - away["gpu"]
    assert len(gone) == 15
    assert gone <= away["host"]
    assert await engine.kv("restore", blocks(tokens)) == {"changed": 15, "named": 15}
    back = await tiers(engine)
    assert gone <= back["gpu"]
    assert (await engine.kv("restore", blocks(tokens)))["changed"] == 0
    from_host = await engine.metric("vllm:external_prefix_cache_hits_total")
    assert await engine.cached(tokens) == LENGTH
    loaded = await engine.metric("vllm:external_prefix_cache_hits_total") - from_host
    assert loaded == LENGTH - MOST


async def test_restore_by_hash_knows_tokens_and_salts(engine: PluginEngine) -> None:
    """Long after pages were given to others, because the host still has them."""
    tokens = prompt("salted")
    await engine.complete(tokens, cache_salt="pepper")
    await engine.complete(prompt("salted-behind", 40))
    named = blocks(tokens, cache_salt="pepper")
    assert (await engine.kv("offload", named))["changed"] == 15
    await fill(engine, "many")
    listed = (await engine.kv("snapshot", {"token_ids": True}))["blocks"]
    away = [
        one["hash"]
        for one in listed
        if one["tier"] == "host" and one["token_ids"][0:3] == tokens[0:3]
    ]
    assert len(away) == 1
    told = await engine.kv("restore", {"hashes": away})
    assert told == {"changed": 1, "named": 1}
    assert away[0] in (await tiers(engine))["gpu"]


async def test_what_comes_back_is_what_was_there(engine: PluginEngine) -> None:
    """The same continuation as from the pages themselves."""
    tokens = await store(engine, "same") + [7, 8, 9]
    reference = await text(engine, tokens)
    assert await text(engine, tokens) == reference
    assert (await engine.kv("offload", blocks(tokens[:LENGTH])))["changed"] == 15
    assert (await engine.kv("restore", blocks(tokens[:LENGTH])))["changed"] == 15
    assert await text(engine, tokens) == reference


async def text(engine: PluginEngine, tokens: list[int]) -> str:
    return str((await engine.complete(tokens, 20))["choices"][0]["text"])


async def test_flush_empties_both_tiers_and_leaves_no_block_behind(
    engine: PluginEngine,
) -> None:
    tokens = await store(engine, "flushed")
    flushed = await engine.kv("flush")
    assert flushed["flushed"]
    assert await tiers(engine) == {"gpu": set(), "host": set()}
    assert await engine.cached(tokens) == 0
    await engine.complete(prompt("end", 40))
    assert await engine.is_whole()


Serve = Callable[[PluginEngine, str], Awaitable[Served]]


@pytest_asyncio.fixture(loop_scope="session")
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    started: list[Served] = []

    async def start(engine: PluginEngine, token: str) -> Served:
        backend = {"name": "a", "url": engine.url, "engine": "vllm", "kv_token": token}
        # Engines that share two cores answer late, and a question that was lost is
        # asked again after a dozen rounds.
        health = {"interval_s": 0.2, "timeout_s": 10}
        settings = {"backends": [backend], "health": health}
        served = Served(tmp_path / "config.yaml", settings)
        served.write()
        started.append(served)
        await served.spawn({})
        return await served.ready(1)

    yield start
    for served in started:
        await served.close()


@pytest.mark.parametrize("token", [TOKEN, "wrong"])
async def test_the_view_begins_with_a_snapshot(
    engine: PluginEngine, serve: Serve, token: str
) -> None:
    """Of an engine without replay that had cached before warmroute came."""
    await engine.kv("flush")
    tokens = await store(engine, f"view-{token}")
    while not (both := await tiers(engine))["gpu"] <= both["host"]:
        await engine.complete(prompt(f"view-{token}-behind", 40))  # copies end in steps
    served = await serve(engine, token)
    await served.until("/api/state", is_followed, 60)
    told = await explain(served, engine, tokens)
    if token != TOKEN:
        assert told == {"gpu": 0, "host": 0, "disk": 0}
        return
    assert told["gpu"] == MOST
    # What the verbs do is in the view at once, and still right. The prompt behind has
    # one block more.
    await engine.kv("evict", blocks(tokens, skip_blocks=8))
    state = await served.until(
        "/api/state", lambda state: state["backends"][0]["view"]["blocks"] == 9
    )
    assert state["backends"][0]["view"]["gaps"] == 0
    assert (await explain(served, engine, tokens))["gpu"] == 8 * BLOCK
    assert await engine.cached(tokens) == 8 * BLOCK


def is_followed(state: dict[str, Any]) -> bool:
    view = state["backends"][0]["view"]
    return view["source"] == "events" and view.get("status") != "catching_up"


async def explain(
    served: Served, engine: PluginEngine, tokens: list[int]
) -> dict[str, int]:
    body = {"model": engine.base.model_name, "prompt": tokens}
    ask = {"path": "/v1/completions", "headers": {}, "body": body}
    _, answer = await served.admin("/api/explain", "POST", json=ask)
    found: dict[str, int] = answer["candidates"][0]["matched_tokens"]
    return found
