"""What users of the embedded engine can name stands in docs/embedded-engine.md."""

import argparse
import re
from pathlib import Path

import pytest
from unit.fake_generator import FakeEngine, serve

from warmroute.adapters.embedded.budget.options import METHODS
from warmroute.adapters.embedded.command import EngineCommand
from warmroute.adapters.embedded.server.chat import ChatFields
from warmroute.adapters.embedded.server.chat_prompt import ChatPrompt
from warmroute.adapters.embedded.server.completions import CompletionFields

PAGE = (Path(__file__).parents[2] / "docs/embedded-engine.md").read_text()


def flags() -> list[str]:
    parser = argparse.ArgumentParser(add_help=False)
    EngineCommand().add_arguments(parser)
    return sorted(flag for one in parser._actions for flag in one.option_strings)


@pytest.mark.parametrize("flag", flags())
def test_flag_is_documented(flag: str) -> None:
    """Every flag of the command stands in a table."""
    assert re.search(rf"^\|[^|]*`{flag}[ `]", PAGE, re.M)


@pytest.mark.parametrize(
    "field",
    sorted(
        {
            *ChatFields.__struct_fields__,
            *ChatPrompt.__struct_fields__,
            *CompletionFields.__struct_fields__,
        }
        - {"tools"}
    ),
)
def test_field_is_documented(field: str) -> None:
    """Every field of a completion's body is named."""
    assert f"`{field}`" in PAGE or f'"{field}"' in PAGE


@pytest.mark.parametrize("method", METHODS)
def test_budget_method_is_documented(method: str) -> None:
    """Every way to keep a token budget is named."""
    assert f"`{method}`" in PAGE


async def test_metrics_and_paths_are_documented() -> None:
    """Every metric that is exposed and every path that is answered is named."""
    async with serve(FakeEngine()) as served:
        _, page = await served.get("/metrics")
        app = served.client.app
        assert app is not None
        paths = {one.canonical for one in app.router.resources()}
    names = set(re.findall(r"^# TYPE (vllm:\w+)", page, re.M))
    made = {name for name in names if name.endswith("_created")}
    assert len(names - made) > 10
    assert {name for name in names - made if f"`{name}`" not in PAGE} == set()
    assert {path for path in paths if f"{path}`" not in PAGE} == set()
