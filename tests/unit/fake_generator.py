"""An engine for tests of its HTTP server: it says what the test tells it to say."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
from aiohttp.test_utils import TestClient, TestServer

from warmroute.adapters.embedded.engine.request import (
    EngineRefused,
    GenerationRequest,
    Limits,
)
from warmroute.adapters.embedded.engine.stats import EngineStats
from warmroute.adapters.embedded.engine.stream import (
    Delta,
    EngineFailed,
    RequestStream,
    TokenLogprob,
)
from warmroute.adapters.embedded.server.app import build_app
from warmroute.adapters.embedded.server.metrics import EngineMetrics
from warmroute.adapters.embedded.server.serving import Serving
from warmroute.adapters.tokens.errors import ModelError

LIMITS = Limits(max_model_len=64, max_num_seqs=8, vocab_size=256)


class FakeTokenizer:
    """One token a byte."""

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return [*text.encode()]

    @property
    def token_bytes(self) -> "FakeTokenizer":
        return self

    def of(self, token_id: int) -> bytes:
        return bytes([token_id])

    def token(self, token_id: int) -> str:
        return self.decode([token_id])

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return bytes(ids).decode(errors="replace")

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> list[int]:
        """Write ``role:content``; a template of its own refuses the role `tool`."""
        if any(one["role"] == "tool" for one in messages):
            raise ModelError("the template raised: no tools here")
        tools = len(options.get("tools") or ())
        text = "|".join(f"{one['role'][0]}:{one['content']}" for one in messages)
        return self.encode(f"{tools}{text}" if tools else text)


class FakeEngine:
    """Say the same words to everybody, one a delta; each word is one token.

    With `is_held` it says nothing until `release` is called.
    """

    def __init__(self, *words: str) -> None:
        self.limits = LIMITS
        self.failure: str | None = None
        self.words = words or ("Hel", "lo")
        self.finish_reason: Any = "stop"
        self.cached_tokens = 0
        self.counts = EngineStats(num_blocks=32, block_size=16)
        self.requests: list[GenerationRequest] = []
        self.aborted: list[str] = []
        self.breaks_after: int | None = None
        self.submitted = asyncio.Event()
        self.aborts = asyncio.Event()
        self.is_held = False
        self._held: list[Callable[[], None]] = []

    def submit(self, request: GenerationRequest) -> RequestStream:
        if self.failure is not None:
            raise EngineRefused("engine_down", self.failure, status=503)
        self.limits.check(request)
        self.requests.append(request)
        stream = RequestStream(request, lambda: self._abort(request))
        if self.is_held:
            self._held.append(lambda: self._speak(stream))
        else:
            self._speak(stream)
        self.submitted.set()
        return stream

    def stats(self) -> EngineStats:
        return self.counts

    def count(self, **counts: float) -> None:
        """Change what `stats` tells."""
        self.counts = replace(self.counts, **counts)

    def release(self) -> None:
        """Say what was held back."""
        for speak in self._held:
            speak()

    def _abort(self, request: GenerationRequest) -> None:
        self.aborted.append(request.request_id)
        self.aborts.set()

    def _speak(self, stream: RequestStream) -> None:
        for at, word in enumerate(self.words):
            if at == self.breaks_after:
                stream.fail(EngineFailed("step 7 failed: out of tune"))
                return
            for index in range(stream.request.n):
                self._say(stream, index, at, word)

    def _say(self, stream: RequestStream, index: int, at: int, word: str) -> None:
        is_last = at == len(self.words) - 1
        logprobs: tuple[TokenLogprob, ...] = ()
        if stream.request.logprobs is not None:
            top = ((65, -0.5), (66, -1.5))[: stream.request.logprobs]
            logprobs = (TokenLogprob(65, -0.5, top),)
        reason = self.finish_reason if is_last else None
        delta = Delta(index, [65 + at], word, reason, None, logprobs)
        stream.push(delta, self.cached_tokens)


class Served:
    """A fake engine behind the real application."""

    def __init__(self, engine: FakeEngine, client: "TestClient[Any, Any]") -> None:
        self.engine = engine
        self.client = client
        self.metrics: EngineMetrics

    async def post(
        self, path: str, body: Any = None, **options: Any
    ) -> tuple[int, Any]:
        """Send a body; returns status and JSON."""
        if isinstance(body, bytes):
            options["data"] = body
        elif "data" not in options:
            options["json"] = body
        async with self.client.post(path, **options) as response:
            return response.status, await response.json()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.client.get(path) as response:
            if response.content_type == "application/json":
                return response.status, await response.json()
            return response.status, await response.text()

    async def stream(self, path: str, body: Any) -> list[str]:
        """Return the data of all events of a stream."""
        async with self.client.post(path, json={**body, "stream": True}) as response:
            assert response.status == 200, await response.text()
            return await events(response)


async def events(response: aiohttp.ClientResponse) -> list[str]:
    """Return the data of all events of an answer."""
    assert response.content_type == "text/event-stream"
    text = (await response.read()).decode()
    assert text.endswith("\n\n")
    return [event.removeprefix("data: ") for event in text.split("\n\n")[:-1]]


@asynccontextmanager
async def serve(engine: FakeEngine, **more: Any) -> AsyncIterator[Served]:
    """Serve a fake engine on a socket."""
    metrics = EngineMetrics("tiny")
    serving = Serving(engine, FakeTokenizer(), ("tiny", "other"), "1.2.3", **more)
    server = TestServer(build_app(serving, metrics))
    await server.start_server()
    async with TestClient(server) as client:
        served = Served(engine, client)
        served.metrics = metrics
        yield served
