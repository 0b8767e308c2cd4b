"""Fixtures that several suites share."""

from collections.abc import AsyncIterator, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest
import yaml
from conformance.raw_engine import RawEngine, Script
from conformance.rig import ForwardClock, Rig, StartRig
from hypothesis import HealthCheck, settings

from warmroute.proxy import router
from warmroute.proxy.app import App
from warmroute.proxy.config import load_config

# Deadlines of wall-clock time fail on a busy machine, whatever the code does.
settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take how long the random programs over real sockets go on."""
    text = "rounds of each random program on KV events (default: %(default)s)"
    parser.addoption("--chaos-rounds", type=int, default=12, help=text)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Skip what only works on Python source where the install is compiled."""
    if not router.__file__.endswith(tuple(EXTENSION_SUFFIXES)):
        return
    skip = pytest.mark.skip(reason="the module whose name it replaces is compiled")
    for item in items:
        if item.get_closest_marker("pure"):
            item.add_marker(skip)


@pytest.fixture
async def start_rig(tmp_path: Path) -> AsyncIterator[StartRig]:
    """Start a proxy in front of one engine for each script."""
    rigs: list[Rig] = []

    async def start(*scripts: Script, **config: Any) -> Rig:
        engines = [await RawEngine(script).start() for script in scripts]
        settings = {
            "listen": "127.0.0.1:0",
            "admin": "off",
            "policy": "least_requests",
            "health": {"interval_s": 0.2, "timeout_s": 30},
            "backends": [
                {"name": f"b{at}", "url": engine.url, "engine": "openai"}
                for at, engine in enumerate(engines)
            ],
            **config,
        }
        path = tmp_path / f"config{len(rigs)}.yaml"
        path.write_text(yaml.safe_dump(settings))

        def load() -> Any:
            return load_config(path, {})

        clock = ForwardClock()
        rig = Rig(App(load(), load, clock), engines, clock)
        rigs.append(rig)
        await rig.app.start()
        if engines:
            await rig.all_up()
        return rig

    yield start
    for rig in rigs:
        await rig.close()
