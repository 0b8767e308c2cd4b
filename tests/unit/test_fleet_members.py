"""Backends that come and go, and where they are."""

import logging
from pathlib import Path
from typing import Any

import pytest
from unit import fleet_rig
from unit.fleet_rig import Make, entry

from warmroute.policies.errors import ConfigError
from warmroute.proxy.config.backend import BackendConfig
from warmroute.proxy.fleet.target import Target

engine = fleet_rig.engine
other = fleet_rig.other
make = fleet_rig.make


class TestMembership:
    async def test_a_name_is_taken_once(self, make: Make) -> None:
        rig = make(entry("a"))
        with pytest.raises(ConfigError, match="'a' exists already"):
            rig.fleet.add(BackendConfig.model_validate(entry("a")))
        with pytest.raises(ConfigError, match="unknown engine 'vlm'"):
            make(entry("a", engine="vlm"))

    async def test_one_added_later_is_probed_and_one_removed_is_not(
        self, make: Make, engine: Any, other: Any
    ) -> None:
        rig = make(entry("a", engine))
        await rig.until_up("a")
        rig.fleet.add(BackendConfig.model_validate(entry("b", other)))
        await rig.until(lambda: rig["b"].state == "up")
        await rig.fleet.remove("a")
        asked = engine.calls["/health"]
        await other.called("/health", 3)
        assert engine.calls["/health"] == asked
        assert rig.names() == ["b"]
        assert list(rig.load.candidates) == ["b", "b rank 1"]
        assert {("added", "b"), ("removed", "a")} <= set(rig.events)

    async def test_traffic_of_a_removed_backend_harms_nobody(
        self, make: Make, engine: Any
    ) -> None:
        rig = make(entry("a", engine))
        await rig.until_up("a")
        backend = rig["a"]
        await rig.fleet.remove("a")
        for _ in range(6):
            rig.fleet.failed(backend, "refused")
        rig.fleet.succeeded(backend)
        rig.fleet.abort(backend, "r1")
        assert repr(rig.fleet) == "<Fleet 0/0 up>"

    async def test_aborts_reach_the_engine(self, make: Make, other: Any) -> None:
        rig = make(entry("b", other))
        await rig.until_up("b")
        rig.fleet.abort(rig["b"], "r1")
        await other.called("/abort_request")
        assert {"rid": "r1"} in other.posted

    async def test_a_hook_that_raises_is_logged_and_stops_no_other(
        self, make: Make, caplog: pytest.LogCaptureFixture
    ) -> None:
        rig = make(entry("a"))
        rig.fleet.on_changed.insert(0, lambda backend: 1 / 0)  # type: ignore[arg-type, return-value]
        rig.fleet.drain("a")
        assert rig.events == [("changed", "a")]
        assert "hook_failed" in [record.message for record in caplog.records]

    async def test_logs_each_change_once(
        self, make: Make, engine: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "warmroute")
        rig = make(entry("a", engine))
        await rig.until_up("a")
        await engine.called("/health", 5)
        told = [
            record.message
            for record in caplog.records
            if record.name.startswith("warmroute.")
            and record.__dict__.get("backend") == "a"
        ]
        assert sorted(told) == [
            "backend_models_changed",
            "backend_recognised",
            "backend_up",
        ]


class TestTarget:
    @pytest.mark.parametrize(
        ("url", "host", "port", "authority", "prefix"),
        [
            ("http://h", "h", 80, "h", ""),
            ("https://h/", "h", 443, "h", ""),
            ("http://h:80/p/", "h", 80, "h", "/p"),
            ("https://h:80/p/q", "h", 80, "h:80", "/p/q"),
            ("http://[::1]:8000", "::1", 8000, "[::1]:8000", ""),
        ],
    )
    def test_takes_a_url_apart(
        self, url: str, host: str, port: int, authority: str, prefix: str
    ) -> None:
        target = Target.parse(url)
        assert target.host == host
        assert target.port == port
        assert target.authority == authority
        assert target.path_prefix == prefix
        assert str(target) == f"{url.split(':')[0]}://{authority}{prefix}"

    async def test_trust_comes_from_the_configuration(
        self, make: Make, tmp_path: Path
    ) -> None:
        rig = make(
            entry("plain"),
            {"name": "tls", "url": "https://h"},
            {"name": "blind", "url": "https://h", "tls": {"verify": False}},
        )
        assert rig["plain"].ssl is None
        assert rig["tls"].ssl is not None
        assert rig["tls"].ssl.check_hostname
        assert rig["blind"].ssl is not None
        assert not rig["blind"].ssl.check_hostname
        bad = tmp_path / "ca.pem"
        bad.write_text("no certificate")
        with pytest.raises(
            ConfigError, match=r"cannot load certificates from .*ca\.pem"
        ):
            make({"name": "x", "url": "https://h", "tls": {"ca": str(bad)}})
