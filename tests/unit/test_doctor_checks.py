"""The checks of the doctor that ask an engine."""

import json
import ssl
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest
from unit import doctor_rig
from unit.doctor_rig import Admit, card, fake, heard, raw_server

from warmroute.adapters.base import (
    EventAddress,
)
from warmroute.adapters.registry import detect
from warmroute.proxy.config.backend import KVEventsConfig
from warmroute.proxy.doctor.clock import Clock
from warmroute.proxy.doctor.engine import Engine
from warmroute.proxy.doctor.finding import ok, skipped
from warmroute.proxy.doctor.idle_connection import Dated
from warmroute.proxy.doctor.keep_alive import KeepAlive
from warmroute.proxy.doctor.prefix_caching import PrefixCaching
from warmroute.proxy.doctor.reachable import Reachable
from warmroute.proxy.fleet.event_sources import find_sources

admitted = doctor_rig.admitted


class TestReachable:
    async def test_names_tls_that_is_not_spoken(self, admitted: Admit) -> None:
        async with fake() as engine:
            patient = admitted(engine.url.replace("http", "https"))
            finding = await Reachable().examine(patient)
        assert (finding.status, "tls_failed" in finding.found) == ("broken", True)
        assert "https" in finding.remedy

    async def test_names_a_host_that_does_not_exist(self, admitted: Admit) -> None:
        finding = await Reachable().examine(admitted("http://nowhere.invalid:1"))
        assert (finding.status, "unreachable" in finding.found) == ("broken", True)

    async def test_an_engine_that_says_no_is_broken(self, admitted: Admit) -> None:
        async with fake(statuses={"/health": 503}) as engine:
            finding = await Reachable().examine(admitted(engine.url))
        assert (finding.status, "HTTP 503" in finding.found) == ("broken", True)

    def test_every_reason_has_a_remedy(self) -> None:
        from warmroute.proxy.doctor.reachable import _REMEDIES
        from warmroute.proxy.failures import connect_failure

        errors = [
            TimeoutError(),
            ssl.SSLError(),
            ssl.SSLCertVerificationError(),
            ConnectionRefusedError(),
            OSError(),
        ]
        assert {connect_failure(error) for error in errors} == set(_REMEDIES)


class TestIdleConnection:
    @pytest.mark.parametrize(
        ("head", "then_s", "status", "word"),
        [
            ("", None, "ok", "open after 1.1 s idle"),
            ("", 0.3, "warn", "it closes after 0."),
            ("Connection: close", 0.0, "warn", "after each answer"),
            ("", 0.0, "warn", "after each answer"),
        ],
    )
    async def test_keep_alive_is_watched(
        self, admitted: Admit, head: str, then_s: float | None, status: str, word: str
    ) -> None:
        async with raw_server(head, then_s) as url:
            patient = admitted(url)
            await Reachable().examine(patient)
            finding = await KeepAlive().examine(patient)
        assert (finding.status, word in finding.found) == (status, True), finding

    @pytest.mark.parametrize(
        ("ahead_s", "status", "word"),
        [
            (0, "ok", "within 2 s"),
            (3600, "warn", "s ahead of ours"),
            (-3600, "warn", "s behind ours"),
        ],
    )
    async def test_the_date_of_an_answer_is_compared(
        self, admitted: Admit, ahead_s: float, status: str, word: str
    ) -> None:
        date = formatdate(time.time() + ahead_s, usegmt=True)
        async with raw_server(f"Date: {date}", 0.0) as url:
            patient = admitted(url)
            await Reachable().examine(patient)
            finding = await Clock().examine(patient)
        assert (finding.status, word in finding.found) == (status, True), finding

    async def test_an_answer_without_a_date_tells_no_time(
        self, admitted: Admit
    ) -> None:
        async with raw_server("Date: tomorrow", 0.0) as url:
            patient = admitted(url)
            await Reachable().examine(patient)
            assert (await Clock().examine(patient)).status == "skipped"

    @pytest.mark.parametrize(
        ("theirs", "offset_s"), [(10, 0), (9, 0), (8, -0.5), (11, 0.3), (5, -3.5)]
    )
    def test_an_offset_is_what_it_must_be_at_least(
        self, theirs: float, offset_s: float
    ) -> None:
        """Dates are cut to whole seconds, so they may be up to one older."""
        assert Dated(theirs, 9.5, 10.7).offset_s == pytest.approx(offset_s)

    async def test_an_event_tells_time_better(self, admitted: Admit) -> None:
        patient = admitted()
        patient.heard = heard(ahead_s=-60)
        finding = await Clock().examine(patient)
        assert finding.found == "60 s behind ours, by an event's time"


class TestEngine:
    @pytest.mark.parametrize(
        ("kind", "engine", "status", "word"),
        [
            ("vllm", "auto", "ok", "vllm 0.32.0"),
            ("sglang", "sglang", "ok", "sglang 0.5.23"),
            ("vllm", "sglang", "warn", "looks like vllm"),
            ("openai", "auto", "warn", "no engine that warmroute knows"),
        ],
    )
    async def test_is_recognised(
        self, admitted: Admit, kind: str, engine: str, status: str, word: str
    ) -> None:
        async with fake(kind) as served:
            patient = admitted(served.url, engine=engine)
            finding = await Engine().examine(patient)
        assert (finding.status, word in finding.found) == (status, True), finding


class TestPrefixCaching:
    @pytest.fixture
    async def examined(self, admitted: Admit) -> Callable[..., Any]:
        async def examine(generates: bool = True, **attributes: Any) -> Any:
            async with fake(**attributes) as engine:
                patient = admitted(engine.url)
                patient.adapter = await detect(patient.endpoint, [card("m")])
                patient.facts = await patient.adapter.facts(patient.endpoint)
                patient.findings["generation"] = ok("") if generates else skipped("")
                return await PrefixCaching().examine(patient), engine

        return examine

    @pytest.mark.parametrize("generates", [True, False])
    async def test_an_engine_that_says_off_is_believed(
        self, examined: Any, generates: bool
    ) -> None:
        page = b'vllm:cache_config_info{enable_prefix_caching="False"} 1.0\n'
        finding, engine = await examined(generates, bodies={"/metrics": page})
        assert (finding.status, engine.posted) == ("broken", [])
        assert "--no-enable-prefix-caching" in finding.remedy

    async def test_counters_stand_in_for_reports(self, examined: Any) -> None:
        """The hit counter rises while the prompt is sent."""
        asked = 0

        class Rising(dict[str, bytes]):
            def __getitem__(self, path: str) -> bytes:
                nonlocal asked
                if path != "/metrics":
                    return b"{}"
                asked += 1
                hits = 96 * (asked > 2)  # facts, before, after
                return (
                    f"vllm:prefix_cache_queries_total 500\n"
                    f"vllm:prefix_cache_hits_total {hits}\n"
                ).encode()

        bodies = Rising({"/metrics": b"", "/v1/completions": b""})
        finding, _ = await examined(bodies=bodies)
        assert finding.status == "ok"
        assert "rose by 96" in finding.found

    async def test_without_either_nothing_is_known(self, examined: Any) -> None:
        finding, engine = await examined()
        assert finding.status == "skipped"
        assert len(engine.posted) == 2
        first, second = engine.posted
        assert first == second

    async def test_another_rank_may_have_got_the_second(self, examined: Any) -> None:
        page = (
            b'vllm:cache_config_info{engine="0",block_size="16"} 1.0\n'
            b'vllm:cache_config_info{engine="1",block_size="16"} 1.0\n'
        )
        usage = {"usage": {"prompt_tokens_details": {"cached_tokens": 0}}}
        answer = json.dumps(usage).encode()
        bodies = {"/metrics": page, "/v1/completions": answer}
        finding, _ = await examined(bodies=bodies)
        assert (finding.status, "2 ranks" in finding.found) == ("warn", True)


class TestSources:
    async def test_an_explicit_address_stands_as_it_is(self) -> None:
        """The engine is not asked, and a concrete host is connected to."""
        told = KVEventsConfig(endpoint="tcp://h:1", replay="tcp://h:2", topic="t")
        found = await find_sources(told, None, None)  # type: ignore[arg-type]
        assert found == [EventAddress("tcp://h:1", "tcp://h:2", "t", 0, binds=False)]
        told = KVEventsConfig(endpoint="tcp://h:1", bind=True)
        [bound] = await find_sources(told, None, None)  # type: ignore[arg-type]
        assert bound.binds

    async def test_off_asks_nothing(self) -> None:
        assert await find_sources("off", None, None) == []  # type: ignore[arg-type]

    async def test_auto_asks_the_adapter(self, admitted: Admit) -> None:
        source = {"endpoint": "tcp://*:5557", "topic": "kv"}
        answer = json.dumps({"0": source}).encode()
        async with fake(bodies={"/kv_event_sources": answer}) as engine:
            patient = admitted(engine.url)
            adapter = await detect(patient.endpoint, [card("m")])
            [found] = await find_sources("auto", adapter, patient.endpoint)
        assert found == EventAddress("tcp://127.0.0.1:5557", None, "kv")
