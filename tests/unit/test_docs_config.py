"""The documents of the configuration say what the code does."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from warmroute.policies.registry import policies
from warmroute.policies.routing.base import options
from warmroute.proxy.cli import build_parser
from warmroute.proxy.config import Config, differences, load_config
from warmroute.proxy.config.keys import Key
from warmroute.proxy.config.reference import markdown
from warmroute.proxy.config.schema import json_schema

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "docs" / "warmroute.schema.json"
MINIMAL = ROOT / "examples" / "00_minimal"


def check_schema(*files: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--schemafile", str(SCHEMA)]
    return subprocess.run([*command, *map(str, files)], capture_output=True, text=True)


class TestReference:
    def test_is_current(self) -> None:
        """Regenerate it with `warmroute schema --markdown`."""
        assert (ROOT / "docs" / "configuration.md").read_text() == markdown()

    def test_every_key_is_described_and_named(self) -> None:
        text = markdown()
        for path, key in Key(Config).walk():
            assert key.field is not None
            assert key.field.description, path
            assert f"| `{path[-1]}` |" in text

    @pytest.mark.parametrize("name", policies.names())
    def test_every_policy_option_is_named(self, name: str) -> None:
        section = markdown().partition(f"### `{name}`")[2].partition("###")[0]
        assert all(f"`{o.name}`" in section for o in options(policies.get(name)))

    def test_every_flag_that_overrides_is_named(self) -> None:
        text = markdown()
        assert all(flag in text for flag in ("--listen", "--admin", "--log-level"))
        assert build_parser().parse_args(["serve", "--listen", "x"]).listen == "x"


class TestSchema:
    def test_is_current(self) -> None:
        """Regenerate it with `warmroute schema`."""
        assert json.loads(SCHEMA.read_text()) == json_schema()

    def test_takes_every_example(self) -> None:
        files = [MINIMAL / "full.yaml", *ROOT.glob("examples/*/config.yaml")]
        assert len(files) >= 2
        result = check_schema(*files)
        assert result.returncode == 0, result.stdout

    def test_takes_what_the_loader_takes(self, tmp_path: Path) -> None:
        file = tmp_path / "config.yaml"
        file.write_text(
            "listen: 8080\nadmin: off\ntracing: off\npolicy: session\n"
            "models: [a, {name: b, tokenizer: engine}]\n"
            "index: {max_bytes: 1 GiB}\nretry: {attempts: '${N:-2}'}\n"
            "truth: {usage: off}\nbackends:\n"
            "  - {url: http://a, kv_events: off, class: h100}\n"
            "  - {url: http://b, kv_events: {endpoint: 'tcp://b:1'}}\n"
        )
        load_config(file, {})
        result = check_schema(file)
        assert result.returncode == 0, result.stdout

    @pytest.mark.parametrize(
        "text",
        [
            "backends: [{url: http://a, engine: vlm}]",
            "backends: [http://a]\nlistn: x",
            "backends: [http://a]\npolicy: {name: session, bond: 2}",
            "backends: []",
            "log: {level: info}",
        ],
    )
    def test_refuses_mistakes(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "config.yaml"
        file.write_text(text)
        assert check_schema(file).returncode == 1


class TestExamples:
    def test_full_file_has_the_defaults(self) -> None:
        minimal = load_config(MINIMAL / "config.yaml", {})
        assert differences(minimal, load_config(MINIMAL / "full.yaml", {})) == []

    def test_full_file_names_every_key(self) -> None:
        text = (MINIMAL / "full.yaml").read_text()
        for path, _ in Key(Config).walk():
            assert f"{path[-1]}:" in text, path
