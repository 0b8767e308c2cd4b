"""One embedded engine with the tiny model, its HTTP server and its events."""

import random
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from unit.fake_clock import FakeClock
from unit.kv_subscriber import Message, replay

from warmroute.adapters.base import Endpoint
from warmroute.adapters.embedded.budget.rules import TokenRules
from warmroute.adapters.embedded.client import EmbeddedAdapter
from warmroute.adapters.embedded.engine.engine import Engine
from warmroute.adapters.embedded.engine.options import EngineOptions
from warmroute.adapters.embedded.engine.request import GenerationRequest
from warmroute.adapters.embedded.model.loading import LoadedModel, load_model
from warmroute.adapters.embedded.server.app import build_app
from warmroute.adapters.embedded.server.block_names import BlockNames
from warmroute.adapters.embedded.server.control import add_control_routes
from warmroute.adapters.embedded.server.door import Door
from warmroute.adapters.embedded.server.event_log import EventLog
from warmroute.adapters.embedded.server.kv_events import KVEventPublisher
from warmroute.adapters.embedded.server.kv_verbs import EngineKVControl
from warmroute.adapters.embedded.server.metrics import EngineMetrics
from warmroute.adapters.embedded.server.serving import Serving
from warmroute.adapters.kv_control import Snapshot
from warmroute.adapters.kv_requests import (
    SnapshotRequest,
)
from warmroute.policies.kv.blocks import hash_tokens, root_hash

BLOCK = 4
BLOCKS = 32
LENGTH = 41  # ten full blocks, and the token that is always computed
FULL = 40

Tokens = list[int]


class Rig:
    """One engine with its HTTP server and its events."""

    def __init__(self, loaded: LoadedModel, folder: Path, **options: Any) -> None:
        settings = {"num_blocks": BLOCKS, "block_size": BLOCK, **options}
        self.clock = FakeClock(1000.0)
        self.name = loaded.name
        self.replay = f"ipc://{folder}/replay"
        self.publisher = KVEventPublisher(f"ipc://{folder}/events", self.replay)
        self.metrics = EngineMetrics(loaded.name)
        self.engine = Engine(
            loaded,
            EngineOptions(**settings),
            clock=self.clock,
            observer=self.metrics,
            kv_observer=EventLog(self.publisher, BLOCK),
            rules=TokenRules(),
        )
        self.serving = Serving(self.engine, loaded.tokenizer, [loaded.name], "9.9")

    async def start(self, stack: AsyncExitStack) -> "Rig":
        self.publisher.start()
        stack.callback(self.publisher.close)
        await self.engine.start()
        stack.push_async_callback(self.engine.close)
        app = build_app(self.serving, self.metrics)
        root = await self.engine.call(lambda state: state.root)
        names = BlockNames(self.serving, BLOCK, root)
        control = EngineKVControl(self.engine, names, self.publisher, has_budgets=True)
        add_control_routes(app, control, Door("127.0.0.1"))
        server = TestServer(app)
        await server.start_server()
        stack.push_async_callback(server.close)
        self.url = str(server.make_url("")).rstrip("/")
        self.session = await stack.enter_async_context(aiohttp.ClientSession())
        self.endpoint = Endpoint(self.session, self.url, {}, 30)
        self.kv = EmbeddedAdapter().kv_control(self.endpoint)
        return self

    async def ask(self, prompt: Tokens | str, **fields: Any) -> int:
        """Generate one token; return how many of the prompt were cached."""
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, **fields}
        url = f"{self.url}/v1/completions"
        async with self.session.post(url, json=body) as response:
            answer = await response.json()
        assert response.status == 200, answer
        cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached

    @asynccontextmanager
    async def running(self, prompt: Tokens) -> AsyncIterator[None]:
        """Keep a request running that has its first token."""
        request = GenerationRequest("r", prompt, max_tokens=4000, ignore_eos=True)
        async with self.engine.submit(request) as stream:
            await anext(stream)
            yield
            assert not stream.is_finished

    async def fill(self, count: int = 8) -> None:
        """Ask for more than the pool can hold besides."""
        for _ in range(count):
            await self.ask(fresh())

    async def held(self, prompt: Tokens) -> int:
        """Count the blocks of a prompt that are cached."""
        hashes = hash_tokens(array("I", prompt), BLOCK, root_hash(self.name))
        cached = {one.hash for one in (await resident(self)).blocks}
        return len(cached.intersection(hashes))

    def messages(self, start: int = 0) -> list[Message]:
        return replay(self.replay, start)


_RANDOM = random.Random(3)


def fresh(length: int = LENGTH) -> Tokens:
    """Return a prompt that nobody has sent before."""
    return [_RANDOM.randrange(3, 259) for _ in range(length)]


Start = Callable[..., Any]


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model("tiny")


@pytest.fixture
async def start(loaded: LoadedModel, tmp_path: Path) -> AsyncIterator[Start]:
    """Start engines, and stop them afterwards."""
    async with AsyncExitStack() as stack:

        async def build(**options: Any) -> Rig:
            return await Rig(loaded, tmp_path, **options).start(stack)

        yield build


async def resident(rig: Rig) -> Snapshot:
    return await rig.kv.snapshot(SnapshotRequest(token_ids=True))
