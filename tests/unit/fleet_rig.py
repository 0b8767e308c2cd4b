"""A rig for tests of the fleet: a fake clock, fake engines, recorded hooks."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from unit.fake_clock import FakeClock
from unit.fake_engine import FakeEngine

from warmroute.adapters.base import ModelCard
from warmroute.policies.routing.load import FleetLoad
from warmroute.proxy.config.backend import BackendConfig
from warmroute.proxy.config.sections import HealthConfig
from warmroute.proxy.fleet import Fleet
from warmroute.proxy.fleet.backend import Backend

NOWHERE = "http://127.0.0.1:1"


class Rig:
    """A fleet with a fake clock that tells when something happened to it."""

    def __init__(self, *entries: dict[str, Any], **health: Any) -> None:
        settings = {"interval_s": 0.02, "timeout_s": 5, **health}
        self.clock = FakeClock(1000.0)
        self.load = FleetLoad()
        self.events: list[tuple[str, str]] = []
        configs = [BackendConfig.model_validate(entry) for entry in entries]
        health_config = HealthConfig.model_validate(settings)
        self.fleet = Fleet(configs, health_config, self.load, clock=self.clock)
        self._moved = asyncio.Event()
        for kind in ("added", "removed", "restarted", "facts", "changed"):
            getattr(self.fleet, f"on_{kind}").append(self._recorder(kind))

    def _recorder(self, kind: str) -> Callable[[Backend], None]:
        def record(backend: Backend) -> None:
            self.events.append((kind, backend.name))
            self._moved.set()

        return record

    def __getitem__(self, name: str) -> Backend:
        return self.fleet.backends[name]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a hook finds the condition true."""
        async with asyncio.timeout(10):
            while not condition():
                self._moved.clear()
                await self._moved.wait()

    async def until_up(self, *names: str) -> None:
        """Start, and wait until these are up."""
        await self.fleet.start()
        await self.until(lambda: all(self[name].state == "up" for name in names))

    def names(self, model: str | None = None) -> list[str]:
        """Name the backends that may serve a model."""
        return [backend.name for backend in self.fleet.routable(model)]

    def put_up(self, **models: str) -> None:
        """Make backends look up, serving these comma-separated models."""
        for backend in self.fleet.backends.values():
            backend.vitals.pass_probe(None)
        for name, served in models.items():
            cards = [_card(model) for model in served.split(",") if model]
            self[name].learn_models(cards)
        self.fleet._routes.forget()


def _card(model: str) -> ModelCard:
    return ModelCard(model, None, None, None, {"id": model})


def entry(name: str, fake: Any = None, **more: Any) -> dict[str, Any]:
    """Write a backend's entry, with an engine's address or nobody's."""
    return {"name": name, "url": fake.url if fake else NOWHERE, **more}


@pytest.fixture
async def engine() -> AsyncIterator[Any]:
    fake = await FakeEngine("vllm").start()
    yield fake
    await fake.stop()


@pytest.fixture
async def other() -> AsyncIterator[Any]:
    fake = await FakeEngine("sglang", ("m", "n")).start()
    yield fake
    await fake.stop()


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., Rig]]:
    """Make fleets, and close them afterwards."""
    rigs: list[Rig] = []

    def factory(*entries: dict[str, Any], **health: Any) -> Rig:
        rigs.append(Rig(*entries, **health))
        return rigs[-1]

    yield factory
    for rig in rigs:
        await rig.fleet.close()


Make = Callable[..., Rig]
