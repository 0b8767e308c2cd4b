"""Where the vLLM plugin begins: releases, its entry point, tokens of the server."""

from types import SimpleNamespace

import pytest

from warmroute.adapters.kv_plugin.entry import is_wanted
from warmroute.adapters.kv_requests import BlocksRequest
from warmroute.adapters.vllm.plugin.entry import register
from warmroute.adapters.vllm.plugin.tokens import ServerTokens
from warmroute.adapters.vllm.plugin.versions import version_fault
from warmroute.policies.errors import ClientError


class TestTokens:
    async def test_a_refusal_of_vllm_is_told(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Serving:
            async def create_tokenize(self, request: object, raw: object) -> object:
                return SimpleNamespace(error=SimpleNamespace(message="no template"))

        monkeypatch.setattr(
            "warmroute.adapters.vllm.plugin.tokens._asked", lambda request: request
        )
        with pytest.raises(ClientError, match="no template"):
            await ServerTokens(Serving(), None, 9).tokenize(BlocksRequest(prompt="a"))


class TestVersions:
    @pytest.mark.parametrize("version", ["0.32.0", "0.32.5+cpu", "0.32.1rc1"])
    def test_known_ones(self, version: str) -> None:
        assert version_fault(version) is None

    @pytest.mark.parametrize("version", ["0.33.0", "0.31.9", "1.32.0", "dev", ""])
    def test_others_are_named(self, version: str) -> None:
        fault = version_fault(version)
        assert fault is not None
        assert f"vLLM {version} is not known to this plugin (known: 0.32.*)" in fault


class TestEntry:
    @pytest.mark.parametrize(
        ("names", "is_named"),
        [(None, False), ("", False), ("lora", False), ("a, warmroute", True)],
    )
    def test_is_wanted_only_by_name(
        self, monkeypatch: pytest.MonkeyPatch, names: str | None, is_named: bool
    ) -> None:
        if names is None:
            monkeypatch.delenv("VLLM_PLUGINS", raising=False)
        else:
            monkeypatch.setenv("VLLM_PLUGINS", names)
        assert is_wanted("VLLM_PLUGINS") is is_named

    def test_where_nothing_fits_the_engine_runs_on(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """There is no vLLM here at all."""
        monkeypatch.delenv("VLLM_PLUGINS", raising=False)
        register()
        assert not caplog.text
        monkeypatch.setenv("VLLM_PLUGINS", "warmroute")
        register()
        assert "the plugin is off" in caplog.text
