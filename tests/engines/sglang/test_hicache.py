"""The plugin and HiCache's host tier in a real SGLang, with CUDA stood in for."""

import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from engines.sglang.engine import PAGE, SGLangOptions
from engines.sglang.plugin_rig import PluginEngine, prompt, with_plugin
from engines.sglang.stream import EventStream

from warmroute.adapters.sglang.client import SGLangAdapter

pytestmark = [
    pytest.mark.engines,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
]
SHIM = Path(__file__).with_name("hicache_shim.py")
FLAGS = (
    "--enable-hierarchical-cache",
    "--hicache-ratio=4",
    "--hicache-io-backend=direct",
    "--hicache-mem-layout=layer_first",
    "--hicache-write-policy=write_through",
)


def add_shim(site: Path) -> None:
    """Have SGLang find the stand-in as a plugin of its own."""
    shutil.copy(SHIM, site / SHIM.name)
    info = site / "hicache_shim-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: hicache_shim\nVersion: 1\n"
    )
    (info / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\nhicache_shim = hicache_shim:register\n"
    )


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def tiered(
    sglang_options: SGLangOptions,
    sglang_http: aiohttp.ClientSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[PluginEngine]:
    site = tmp_path_factory.mktemp("hicache") / "site"
    options = with_plugin(sglang_options, site)
    add_shim(site)
    options = replace(
        options,
        pool_tokens=2048,
        context_length=1024,
        binds=True,
        arguments=FLAGS,
        environ={**options.environ, "SGLANG_PLUGINS": "warmroute,hicache_shim"},
    )
    async with PluginEngine(options, sglang_http) as engine:
        yield engine


@pytest_asyncio.fixture(loop_scope="session")
async def engine(tiered: PluginEngine) -> PluginEngine:
    """Return the engine with nothing on device and host."""
    assert (await tiered.kv("flush", {}))["flushed"]
    return tiered


async def _tiers(engine: PluginEngine) -> dict[str, int]:
    blocks = (await engine.snapshot()).blocks
    tiers = [one.tier for one in blocks]
    return {tier: tiers.count(tier) for tier in ("gpu", "host")}


async def test_a_publisher_that_binds_is_connected_to(engine: PluginEngine) -> None:
    (source,) = await SGLangAdapter().event_sources(engine.endpoint)
    assert (source.endpoint, source.binds) == (engine.events, False)


async def test_what_is_offloaded_comes_back_from_the_host(
    engine: PluginEngine,
) -> None:
    """And from the device where it was not offloaded."""
    await engine.generate(prompt(1))
    stayed = (await engine.generate(prompt(1)))["cached_tokens_details"]
    assert stayed == {"device": 30 * PAGE, "host": 0}
    assert await _tiers(engine) == {"gpu": 30, "host": 30}
    assert (await engine.kv("offload", {"token_ids": prompt(1)}))["changed"] == 30
    assert await _tiers(engine) == {"gpu": 0, "host": 30}
    back = (await engine.generate(prompt(1)))["cached_tokens_details"]
    assert back == {"device": 0, "host": 30 * PAGE}


async def test_only_a_tail_can_be_offloaded(engine: PluginEngine) -> None:
    await engine.generate(prompt(2))
    tail = {"token_ids": prompt(2), "skip_blocks": 10}
    assert (await engine.kv("offload", tail))["changed"] == 20
    assert await _tiers(engine) == {"gpu": 10, "host": 30}
    told = (await engine.generate(prompt(2)))["cached_tokens_details"]
    assert told == {"device": 10 * PAGE, "host": 20 * PAGE}


async def test_what_is_evicted_is_gone_from_the_host_too(engine: PluginEngine) -> None:
    await engine.generate(prompt(3))
    answer = await engine.kv("evict", {"token_ids": prompt(3), "skip_blocks": 4})
    assert (len(answer["evicted"]), answer["kept"]) == (26, [])
    assert await _tiers(engine) == {"gpu": 4, "host": 4}
    assert await engine.cached(prompt(3)) == 4 * PAGE


async def test_a_snapshot_equals_the_events_on_both_tiers(engine: PluginEngine) -> None:
    """More prompts than the device holds, so that some are on the host alone."""
    for seed in range(10, 17):
        await engine.generate(prompt(seed))
    snapshot = await engine.snapshot()
    assert snapshot.seq is not None
    told = EventStream.replayed(engine.replay, snapshot.seq).held
    for tier in ("gpu", "host"):
        assert {one.hash for one in snapshot.blocks if one.tier == tier} == told[tier]
    assert 0 < len(told["gpu"]) < len(told["host"])
