"""Backends under examination, and servers for them to be at."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from unit.fake_engine import FakeEngine

from warmroute.adapters.base import (
    EventAddress,
    ModelCard,
)
from warmroute.adapters.kv_events.wire import Stored
from warmroute.proxy.config import BackendConfig, ModelConfig, TimeoutsConfig
from warmroute.proxy.doctor.ear import Heard
from warmroute.proxy.doctor.patient import Conditions, Patient, admit

Admit = Callable[..., Patient]


@pytest.fixture
async def admitted() -> AsyncIterator[Admit]:
    """Admit backends by URL over one session."""
    patients: list[Patient] = []
    async with aiohttp.ClientSession() as session:

        def make(
            url: str = "http://127.0.0.1:1",
            name: str = "a",
            models: tuple[ModelConfig, ...] = (),
            pool_idle_s: float = 0.1,
            **config: Any,
        ) -> Patient:
            timeouts = TimeoutsConfig(pool_idle_s=pool_idle_s)
            conditions = Conditions(timeouts, models, 2.0, is_probing=True)
            backend = BackendConfig(name=name, url=url, **config)
            patients.append(admit(backend, conditions, session, None))
            return patients[-1]

        yield make
    for patient in patients:
        if patient.connection is not None:
            patient.connection.close()


def card(name: str, length: int | None = None, parent: str | None = None) -> ModelCard:
    return ModelCard(name, parent, length, "vllm", {})


def heard(block_size: int = 16, ahead_s: float = 0.0) -> Heard:
    event = Stored([1], None, [7] * block_size, block_size)
    return Heard(EventAddress("tcp://h:1"), 3, b"", event, 1000.0 + ahead_s, 1000.0)


@asynccontextmanager
async def raw_server(head: str, then_s: float | None) -> AsyncIterator[str]:
    """Serve one head to everything, and close so many seconds later, or never."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                lines = ["HTTP/1.1 200 OK", "Content-Length: 2", *head.splitlines()]
                writer.write("\r\n".join([*lines, "", "{}"]).encode())
                if then_s is not None:
                    await asyncio.sleep(then_s)
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def fake(kind: str = "vllm", **attributes: Any) -> AsyncIterator[FakeEngine]:
    engine = await FakeEngine(kind).start()
    for name, value in attributes.items():
        setattr(engine, name, value)
    try:
        yield engine
    finally:
        await engine.stop()
