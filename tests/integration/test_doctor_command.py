"""``warmroute doctor`` as a process: what is printed, and the exit codes."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from integration.doctor_rig import (
    tiny_engine,
    write_config,
)

from warmroute.adapters.embedded.model.loading import LoadedModel, load_model


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model("tiny")


class TestCommand:
    async def doctor(self, *arguments: str) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "warmroute.proxy.cli", "doctor", *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def test_prints_a_table_and_ends_with_0_when_all_is_well(
        self, loaded: LoadedModel, tmp_path: Path
    ) -> None:
        async with tiny_engine(loaded) as a:
            path = write_config(tmp_path, {"a": a})
            code, out, err = await self.doctor("-c", str(path))
        assert (code, err) == (0, "")
        lines = out.splitlines()
        assert lines[0] == f"a  {a['url']}"
        assert lines[1].split()[:2] == ["ok", "reachable"]
        assert lines[-1].startswith("0 broken, 0 warn, ")

    async def test_prints_one_object_and_ends_with_1_when_something_is_broken(
        self, loaded: LoadedModel, tmp_path: Path
    ) -> None:
        """Neither the key that is set nor the one that is wanted is shown."""
        async with tiny_engine(loaded, key="sesame") as a:
            path = write_config(tmp_path, {"a": {**a, "api_key": "opensesame"}})
            code, out, err = await self.doctor("-c", str(path), "--json")
        answer = json.loads(out)
        assert (code, answer["ok"], answer["counts"]["broken"]) == (1, False, 1)
        [backend] = answer["backends"]
        assert backend["checks"][1]["check"] == "authorised"
        assert backend["checks"][1]["status"] == "broken"
        assert "sesame" not in out + err

    @pytest.mark.parametrize(
        "arguments", [(), ("-c", "nowhere.yaml"), ("http://a", "--timeout", "0")]
    )
    async def test_bad_usage_or_configuration_is_2(
        self, arguments: tuple[str, ...]
    ) -> None:
        code, out, err = await self.doctor(*arguments)
        assert (code, out) == (2, "")
        assert err
