"""The configs of the examples are valid and say what their READMEs say."""

from pathlib import Path

import pytest

from warmroute.proxy.cli import main
from warmroute.proxy.config import load_config

EXAMPLES = Path(__file__).parents[2] / "examples"
TWO_VLLM = EXAMPLES / "01_two_vllm" / "config.yaml"


def test_two_vllm_passes_check_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "-c", str(TWO_VLLM), "--check-config"]) == 0
    assert "ok (2 backends, policy expected_ttft)" in capsys.readouterr().out


def test_two_vllm_works_without_variables() -> None:
    config = load_config(TWO_VLLM, {})
    assert config.policy.name == "expected_ttft"
    assert [backend.name for backend in config.backends] == ["a", "b"]
    assert {"vllm"} == {backend.engine for backend in config.backends}


def test_two_vllm_takes_policy_and_addresses_from_variables() -> None:
    environ = {
        "POLICY": "round_robin",
        "LISTEN": "127.0.0.1:18080",
        "ENGINE_A": "http://127.0.0.1:18101",
    }
    config = load_config(TWO_VLLM, environ)
    assert config.policy.name == "round_robin"
    assert config.listen.port == 18080
    assert config.backends[0].url == "http://127.0.0.1:18101"
