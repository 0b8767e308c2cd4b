"""Engines in all states of health, and an examination of them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from unit.fake_engine import FakeEngine

from warmroute.adapters.embedded.budget.rules import TokenRules
from warmroute.adapters.embedded.engine.engine import Engine
from warmroute.adapters.embedded.engine.options import EngineOptions
from warmroute.adapters.embedded.model.loading import LoadedModel
from warmroute.adapters.embedded.server.app import build_app
from warmroute.adapters.embedded.server.event_log import EventLog
from warmroute.adapters.embedded.server.kv_events import KVEventPublisher
from warmroute.adapters.embedded.server.listener import Listener
from warmroute.adapters.embedded.server.metrics import EngineMetrics
from warmroute.adapters.embedded.server.serving import Serving
from warmroute.proxy.config import load_config
from warmroute.proxy.doctor.examination import Examination, Examined
from warmroute.proxy.doctor.finding import Finding

Entry = dict[str, Any]


@asynccontextmanager
async def tiny_engine(
    loaded: LoadedModel,
    *,
    events: str | None = "tcp://*:0",
    replay: str | None = "tcp://*:0",
    topic: str = "",
    key: str | None = None,
    block_size: int = 16,
    told: Mapping[str, object] | None = None,
) -> AsyncIterator[Entry]:
    """Serve the tiny model; yields the entry of a configuration.

    Args:
        loaded: The model.
        events: Where KV events are published, or None.
        replay: Where they are replayed, or None.
        topic: Of the events.
        key: Demanded as a bearer token under ``/v1``, as vLLM does.
        block_size: Tokens a block.
        told: What the engine says of its events that is not so.
    """
    publisher = KVEventPublisher(events, replay, topic) if events else None
    log = EventLog(publisher, block_size) if publisher else None
    metrics = EngineMetrics("tiny")
    engine = Engine(
        loaded,
        EngineOptions(num_blocks=128, block_size=block_size, max_model_len=1024),
        observer=metrics,
        kv_observer=log,
        rules=TokenRules(),
    )
    listener = Listener("127.0.0.1", 0)
    if publisher is not None:
        publisher.start()
    await engine.start()
    sources = {"0": {**publisher.source(), **(told or {})}} if publisher else {}
    app = build_app(
        Serving(engine, loaded.tokenizer, ("tiny",), "9.9", sources), metrics
    )
    if key is not None:
        app.middlewares.append(_guard(key))
    await listener.start(app)
    try:
        yield {"url": listener.url}
    finally:
        await listener.close()
        await engine.close()
        if publisher is not None:
            publisher.close()


@asynccontextmanager
async def fake_engine(**attributes: Any) -> AsyncIterator[Entry]:
    """Serve a fake of vLLM; see `FakeEngine`."""
    fake = await FakeEngine("vllm").start()
    for name, value in attributes.items():
        assert hasattr(fake, name)
        setattr(fake, name, value)
    try:
        yield {"url": fake.url}
    finally:
        await fake.stop()


def write_config(folder: Path, entries: Mapping[str, Entry], **more: Any) -> Path:
    """Write a configuration of named backends."""
    backends = [{"name": name, **entry} for name, entry in entries.items()]
    path = folder / "config.yaml"
    settings = {"timeouts": {"pool_idle_s": 0.1}, "backends": backends, **more}
    path.write_text(yaml.safe_dump(settings))
    return path


async def examine(
    folder: Path,
    entries: Mapping[str, Entry],
    *,
    is_probing: bool = True,
    tokenizer: Path | None = None,
) -> Examined:
    """Examine named backends with a timeout of 2 s.

    Args:
        folder: Where the configuration is written.
        entries: The backends by name.
        is_probing: Whether prompts may be sent.
        tokenizer: What the proxy uses for the tiny model.
    """
    more: Entry = {}
    if tokenizer is not None:
        more = {"models": [{"name": "tiny", "tokenizer": str(tokenizer)}]}
    config = load_config(write_config(folder, entries, **more), {})
    return await Examination(config, 2.0, is_probing).run()


def findings(examined: Examined, name: str) -> dict[str, Finding]:
    """Return the findings of one backend by check."""
    [patient] = [one for one in examined.patients if one.name == name]
    return patient.findings


def statuses(found: Mapping[str, Finding]) -> dict[str, str]:
    """Return the statuses by check, without those that are ok."""
    return {name: one.status for name, one in found.items() if one.status != "ok"}


def _guard(key: str) -> Any:
    @web.middleware
    async def guard(request: web.Request, handler: Any) -> web.StreamResponse:
        given = request.headers.get("Authorization")
        if request.path.startswith("/v1") and given != f"Bearer {key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        answer: web.StreamResponse = await handler(request)
        return answer

    return guard
