"""The engines that all tests of the vLLM plugin share, and what one's events say."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import zmq
import zmq.asyncio
from engines.vllm_plugin_rig import (
    BLOCK,
    HOST_TIER,
    PluginEngine,
    PluginOptions,
    link_package,
    pretend,
    prompt,
    running,
)
from two_vllm.engines import EngineOptions
from two_vllm.models import ensure_smollm2

from warmroute.adapters.kv_events.wire import Cleared, Removed, Stored, decode

SPOILER = "vllm_plugin_spoiler.py"
LOOKED_INTO = (
    "--worker-extension-cls=vllm_plugin_spoiler.Spoiler",
    "--max-num-batched-tokens=256",  # prompts are computed beside what is decoded
)


class Ear:
    """Hear an engine's KV events; it connects, so this binds."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.SUB)
        # Some tests change much, and hear nothing.
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.bind(endpoint)

    async def next(self, timeout_s: float = 5.0) -> tuple[int, bytes]:
        """Return the next batch and its number."""
        async with asyncio.timeout(timeout_s):
            _, seq, payload = await self._socket.recv_multipart()
        return int.from_bytes(seq, "big"), payload

    def close(self) -> None:
        self._context.destroy(linger=0)


class EventView:
    """What the events say is cached, counted, because vLLM stores copies."""

    def __init__(self, ear: Ear, seq: int) -> None:
        self.ear = ear
        self.seq = seq
        self.blocks: Counter[int] = Counter()
        self.contents: dict[int, Stored] = {}

    async def catch_up(self, seq: int) -> None:
        """Hear everything up to batch *seq*."""
        while self.seq < seq:
            number, payload = await self.ear.next()
            assert number == self.seq + 1
            self.seq = number
            for event in decode(payload).events:
                self._apply(event)

    def _apply(self, event: object) -> None:
        if isinstance(event, Cleared):
            self.blocks.clear()
        elif isinstance(event, Stored):
            self.blocks.update(int(one) for one in event.block_hashes)
            self.contents.update((int(one), event) for one in event.block_hashes)
        elif isinstance(event, Removed):
            self.blocks.subtract(int(one) for one in event.block_hashes)

    @property
    def cached(self) -> set[int]:
        assert min(self.blocks.values(), default=0) >= 0
        return set(+self.blocks)


async def hear(engine: PluginEngine, ear: Ear) -> int:
    """Wait until the publisher has found us; return the last number, nothing cached."""
    for at in range(100):
        await engine.complete(prompt(f"hear-{at}", 2 * BLOCK))
        with contextlib.suppress(TimeoutError):
            seq, _ = await ear.next(0.2)
            break
    else:
        raise AssertionError("no events")
    await engine.kv("flush")
    last = (await engine.kv("snapshot"))["seq"]
    while seq < last:
        seq, _ = await ear.next()
    return seq


@dataclass(frozen=True, slots=True)
class Plugged:
    """The engines of the tests, which all of them share.

    Attributes:
        engine: With the plugin, and a worker that tests can look into.
        view: What its events say.
        hosted: With a host tier.
        stranger: Of a release that the plugin does not know.
        scored: With SmolLM2, and blocks chosen by attention.
    """

    engine: PluginEngine
    view: EventView
    hosted: PluginEngine
    stranger: PluginEngine
    scored: PluginEngine


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def plugged(
    engine_options: EngineOptions,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Plugged]:
    folder = tmp_path_factory.mktemp("plugin")
    site = with_spoiler(link_package(folder / "site"))
    other = pretend(link_package(folder / "other"), "0.99.0+cpu")
    options = [
        PluginOptions("plugged", folder, site, arguments=LOOKED_INTO),
        PluginOptions("hosted", folder, site, arguments=HOST_TIER, has_replay=False),
        PluginOptions("stranger", folder, other),
        scoring(folder, site, engine_options.environment),
    ]
    async with running(engine_options, options) as (engine, hosted, stranger, scored):
        ear = Ear(engine.events)
        try:
            view = EventView(ear, await hear(engine, ear))
            yield Plugged(engine, view, hosted, stranger, scored)
        finally:
            ear.close()


def with_spoiler(site: Path) -> Path:
    """Let workers that import from *site* be looked into and spoilt by tests."""
    (site / SPOILER).symlink_to(Path(__file__).with_name(SPOILER))
    return site


def scoring(folder: Path, site: Path, environment: Path) -> PluginOptions:
    """Return how the engine is started whose budgets may choose by attention."""
    model, blocks, longest = ensure_smollm2(environment), 48, 1_024
    return PluginOptions(
        "scored",
        folder,
        site,
        num_blocks=blocks,
        max_model_len=longest,
        environ={"WARMROUTE_KV_ATTENTION": "1"},
        base=EngineOptions(environment, model, "smol", blocks, max_model_len=longest),
    )
