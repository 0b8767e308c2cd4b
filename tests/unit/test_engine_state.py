"""How the engine's state makes its eviction policies."""

from typing import Any

import pytest
from unit.engine_rig import ShadowStore

from warmroute.adapters.embedded.engine import state as module
from warmroute.adapters.embedded.engine.options import EngineOptions
from warmroute.adapters.embedded.engine.state import EngineState


def make(eviction: str) -> EngineState:
    options = EngineOptions(num_blocks=8, block_size=32, eviction=eviction)
    return EngineState(ShadowStore(9, 32), options, "m", lambda: 0.0)


class TestEviction:
    @pytest.fixture
    def made(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
        made: list[tuple[str, dict[str, Any]]] = []
        create = module.create

        def spy(name: str, capacity: int, clock: Any, /, **options: object) -> Any:
            made.append((name, options))
            return create(name, capacity, clock, **options)

        monkeypatch.setattr(module, "create", spy)
        return made

    def test_a_policy_that_wants_the_block_size_is_told(
        self, made: list[tuple[str, dict[str, Any]]]
    ) -> None:
        state = make("gdsf")
        state.set_eviction("lru")
        state.set_eviction("gdsf", deep_tokens=8)
        state.set_eviction("gdsf", block_size=4)
        assert made == [
            ("gdsf", {"block_size": 32}),
            ("lru", {}),
            ("gdsf", {"block_size": 32, "deep_tokens": 8}),
            ("gdsf", {"block_size": 4}),
        ]
