"""The checks of the doctor, one by one, and what it prints."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from email.utils import formatdate
from typing import Any

import aiohttp
import pytest

from tests.unit.fake_engine import FakeEngine
from warmroute.adapters.base import (
    CacheCounters,
    Endpoint,
    EngineFacts,
    EventAddress,
    ModelCard,
)
from warmroute.adapters.kv_events.wire import Stored
from warmroute.adapters.registry import detect
from warmroute.policies.errors import ProtocolMismatch
from warmroute.proxy.config import BackendConfig, ModelConfig, TimeoutsConfig
from warmroute.proxy.config.backend import KVEventsConfig
from warmroute.proxy.doctor.block_size import BlockSize, SameBlockSize
from warmroute.proxy.doctor.cached_tokens import CachedTokens
from warmroute.proxy.doctor.clock import Clock
from warmroute.proxy.doctor.dp_ranks import DPRanks
from warmroute.proxy.doctor.ear import Heard
from warmroute.proxy.doctor.engine import Engine
from warmroute.proxy.doctor.event_addresses import EventAddresses
from warmroute.proxy.doctor.examination import CHECKS, FLEET_CHECKS, Examined
from warmroute.proxy.doctor.finding import MAX_CHARS, blocked, broken, ok, skipped, warn
from warmroute.proxy.doctor.hit_ratio import HitRatio
from warmroute.proxy.doctor.idle_connection import Dated
from warmroute.proxy.doctor.keep_alive import KeepAlive
from warmroute.proxy.doctor.kv_events import KVEvents
from warmroute.proxy.doctor.models import Models, SameModels
from warmroute.proxy.doctor.parity import Parity
from warmroute.proxy.doctor.patient import Conditions, Patient, admit
from warmroute.proxy.doctor.prefix_caching import PrefixCaching
from warmroute.proxy.doctor.prompt import Reply, fresh_prompt, send
from warmroute.proxy.doctor.reachable import Reachable
from warmroute.proxy.doctor.report import as_object, as_text
from warmroute.proxy.view.sources import find_sources

Admit = Callable[..., Patient]


@pytest.fixture
async def admitted() -> AsyncIterator[Admit]:
    """Admit backends by URL over one session."""
    patients: list[Patient] = []
    async with aiohttp.ClientSession() as session:

        def make(
            url: str = "http://127.0.0.1:1",
            name: str = "a",
            models: tuple[ModelConfig, ...] = (),
            pool_idle_s: float = 0.1,
            **config: Any,
        ) -> Patient:
            timeouts = TimeoutsConfig(pool_idle_s=pool_idle_s)
            conditions = Conditions(timeouts, models, 2.0, is_probing=True)
            backend = BackendConfig(name=name, url=url, **config)
            patients.append(admit(backend, conditions, session, None))
            return patients[-1]

        yield make
    for patient in patients:
        if patient.connection is not None:
            patient.connection.close()


def card(name: str, length: int | None = None, parent: str | None = None) -> ModelCard:
    return ModelCard(name, parent, length, "vllm", {})


def heard(block_size: int = 16, ahead_s: float = 0.0) -> Heard:
    event = Stored([1], None, [7] * block_size, block_size)
    return Heard(EventAddress("tcp://h:1"), 3, b"", event, 1000.0 + ahead_s, 1000.0)


@asynccontextmanager
async def raw_server(head: str, then_s: float | None) -> AsyncIterator[str]:
    """Serve one head to everything, and close so many seconds later, or never."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                lines = ["HTTP/1.1 200 OK", "Content-Length: 2", *head.splitlines()]
                writer.write("\r\n".join([*lines, "", "{}"]).encode())
                if then_s is not None:
                    await asyncio.sleep(then_s)
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def fake(kind: str = "vllm", **attributes: Any) -> AsyncIterator[FakeEngine]:
    engine = await FakeEngine(kind).start()
    for name, value in attributes.items():
        setattr(engine, name, value)
    try:
        yield engine
    finally:
        await engine.stop()


class TestFinding:
    def test_holds_nothing_that_a_terminal_obeys(self) -> None:
        finding = warn("\x1b[2Jgone\n", "a\rb\u202ec")
        assert (finding.found, finding.remedy) == ("?[2Jgone?", "a?b?c")

    def test_is_cut(self) -> None:
        assert len(ok("x" * 10_000).found) == MAX_CHARS + 3


class TestPrompt:
    @pytest.mark.parametrize(
        ("block_size", "max_model_len", "length"),
        [
            (16, None, 49),
            (None, None, 49),
            (1, None, 4),
            (128, 1024, 385),
            (128, 385, 257),  # the third block would leave no room for an answer
            (128, 129, 0),
            (10**9, None, 3 * 1024 + 1),
        ],
    )
    def test_is_three_blocks_and_a_token_where_they_fit(
        self, block_size: int | None, max_model_len: int | None, length: int
    ) -> None:
        assert len(fresh_prompt(block_size, max_model_len)) == length

    def test_is_new_each_time(self) -> None:
        assert fresh_prompt(16, None) != fresh_prompt(16, None)

    async def test_a_refusal_is_told_without_the_prompt(self) -> None:
        async with (
            fake(statuses={"/v1/completions": 400}) as engine,
            aiohttp.ClientSession() as session,
        ):
            with pytest.raises(ProtocolMismatch) as caught:
                await send(Endpoint(session, engine.url, {}, 2), "m", [77, 78])
        assert "a prompt of 2 token ids with HTTP 400" in str(caught.value)
        assert "77" not in str(caught.value)

    @pytest.mark.parametrize(
        "usage",
        [None, [], {"prompt_tokens_details": 3}, {"prompt_tokens_details": None}],
    )
    async def test_what_is_not_told_is_unknown(self, usage: object) -> None:
        answer = json.dumps({"usage": usage}).encode()
        async with (
            fake(bodies={"/v1/completions": answer}) as engine,
            aiohttp.ClientSession() as session,
        ):
            reply = await send(Endpoint(session, engine.url, {}, 2), None, [1])
        assert reply == Reply(None, None)


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


class TestFacts:
    """Checks that look at what others have found."""

    @pytest.mark.parametrize(
        ("told", "replies", "status"),
        [
            (None, [], "skipped"),
            (True, [], "ok"),
            (False, [], "warn"),
            (None, [None, None], "warn"),
            (None, [None, 48], "ok"),
            (False, [0, 0], "ok"),
            (True, [None, None], "ok"),  # SGLang is silent when nothing hit
        ],
    )
    async def test_cached_token_reports(
        self,
        admitted: Admit,
        told: bool | None,
        replies: list[int | None],
        status: str,
    ) -> None:
        patient = admitted()
        patient.facts = EngineFacts(reports_cached_tokens=told)
        patient.replies = [Reply(49, cached) for cached in replies]
        assert (await CachedTokens().examine(patient)).status == status

    @pytest.mark.parametrize(
        ("told", "event", "status", "word"),
        [
            (16, None, "ok", "16 tokens"),
            (None, 16, "ok", "16 tokens"),
            (None, None, "skipped", "not tell"),
            (16, 32, "warn", "blocks of 32 tokens, and it says 16"),
            (128, None, "warn", "shorter ones never hit"),
        ],
    )
    async def test_block_size(
        self,
        admitted: Admit,
        told: int | None,
        event: int | None,
        status: str,
        word: str,
    ) -> None:
        patient = admitted()
        patient.facts = EngineFacts(block_size=told)
        patient.heard = heard(event) if event else None
        finding = await BlockSize().examine(patient)
        assert (finding.status, word in finding.found) == (status, True), finding

    @pytest.mark.parametrize(
        ("ranks", "sources", "status"),
        [(None, 0, "skipped"), (2, 0, "ok"), (2, 2, "ok"), (2, 1, "warn")],
    )
    async def test_dp_ranks(
        self, admitted: Admit, ranks: int | None, sources: int, status: str
    ) -> None:
        patient = admitted()
        patient.facts = EngineFacts(dp_ranks=ranks)
        patient.sources = [
            EventAddress(f"tcp://h:{rank}", rank=rank) for rank in range(sources)
        ]
        assert (await DPRanks().examine(patient)).status == status

    @pytest.mark.parametrize(
        ("served", "wanted", "status"),
        [
            (["m"], None, "ok"),
            (["m", "n"], ["n"], "ok"),
            (["m"], ["n"], "broken"),
            ([], ["n"], "ok"),
            ([], None, "warn"),
        ],
    )
    async def test_models(
        self,
        admitted: Admit,
        served: list[str],
        wanted: list[str] | None,
        status: str,
    ) -> None:
        patient = admitted()
        patient.config = patient.config.model_copy(update={"models": wanted})
        patient.cards = [card(name) for name in served]
        assert (await Models().examine(patient)).status == status

    async def test_parity_is_skipped_without_a_tokenizer(self, admitted: Admit) -> None:
        models = (ModelConfig(name="m"), ModelConfig(name="n", tokenizer="engine"))
        patient = admitted(models=models)
        patient.cards = [card("m")]
        finding = await Parity().examine(patient)
        assert (finding.status, finding.found) == ("skipped", "no tokenizer configured")
        patient.cards = [card("n")]
        assert "asked for tokens" in (await Parity().examine(patient)).found

    async def test_events_without_pyzmq_name_the_extra(self, admitted: Admit) -> None:
        patient = admitted(kv_events={"endpoint": "tcp://127.0.0.1:1"})
        finding = await KVEvents().examine(patient)
        assert finding == broken(
            "the engine publishes, and the package pyzmq is missing here",
            "pip install 'warmroute[events]'",
        )


class TestFleet:
    async def test_models_of_pools_are_named(self, admitted: Admit) -> None:
        fleet = [admitted(name=name) for name in "abc"]
        for patient, models in zip(fleet, (["m"], ["m", "n"], []), strict=True):
            patient.findings["models"] = ok("")
            patient.cards = [card(name) for name in models]
        finding = SameModels().compare(fleet)
        assert finding.status == "warn"
        assert finding.found == "a serves m; b serves m, n"

    async def test_lengths_that_differ_are_named(self, admitted: Admit) -> None:
        fleet = [admitted(name=name) for name in "ab"]
        for patient, length in zip(fleet, (4096, 2048), strict=True):
            patient.findings["models"] = ok("")
            patient.cards = [card("m", length)]
        assert "a 4096, b 2048" in SameModels().compare(fleet).found

    async def test_one_backend_equals_itself(self, admitted: Admit) -> None:
        fleet = [admitted()]
        for check in FLEET_CHECKS:
            assert check.compare(fleet).status == "skipped"

    async def test_block_sizes_are_those_of_the_events(self, admitted: Admit) -> None:
        a, b = admitted(name="a"), admitted(name="b")
        a.facts = EngineFacts(block_size=16)
        b.facts, b.heard = EngineFacts(block_size=16), heard(32)
        assert SameBlockSize().compare([a, b]).found == "it differs: 16 on a; 32 on b"

    @pytest.mark.parametrize(
        ("topics", "status"),
        [("ab", "ok"), ("aa", "broken"), (("", "a"), "broken")],
    )
    async def test_topics_tell_backends_of_one_address_apart(
        self, admitted: Admit, topics: Any, status: str
    ) -> None:
        fleet = [admitted(name=name) for name in "ab"]
        for patient, topic in zip(fleet, topics, strict=True):
            patient.sources = [EventAddress("tcp://127.0.0.1:1", None, topic)]
        assert EventAddresses().compare(fleet).status == status

    async def test_hits_are_weighted_by_tokens(self, admitted: Admit) -> None:
        fleet = [admitted(name=name) for name in "abc"]
        fleet[0].counters = CacheCounters(900, 600)
        fleet[1].counters = CacheCounters(100, 20)
        fleet[2].counters = CacheCounters(0, 0)
        assert HitRatio().compare(fleet).found == (
            "since they started, the engines served 62% of 1,000 prompt tokens from "
            "cache and computed 38% (a 67%, b 20%)"
        )


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


class TestReport:
    @pytest.fixture
    def examined(self, admitted: Admit) -> Examined:
        patient = admitted("http://127.0.0.1:1/prefix", api_key="secret")
        patient.findings = {
            "reachable": broken("refused", "start it"),
            "engine": blocked("reachable"),
            "models": blocked("reachable"),
            "clock": skipped("no time"),
        }
        return Examined([patient], {"hit ratio": ok("62%")})

    def test_a_remedy_stands_below_its_finding(self, examined: Examined) -> None:
        assert as_text(examined) == (
            "a  http://127.0.0.1:1/prefix\n"
            "  broken   reachable             refused\n"
            "                                 -> start it\n"
            "  skipped  clock                 no time\n"
            "  skipped  2 further checks      need 'reachable'\n"
            "\n"
            "fleet\n"
            "  ok       hit ratio             62%\n"
            "\n"
            "1 broken, 0 warn, 1 ok, 3 skipped: routing relies on what is broken"
        )

    def test_the_object_holds_every_finding(self, examined: Examined) -> None:
        report = as_object(examined)
        assert report["ok"] is False
        assert report["counts"] == {"broken": 1, "warn": 0, "ok": 1, "skipped": 3}
        [backend] = report["backends"]
        assert [one["check"] for one in backend["checks"]] == [
            "reachable",
            "engine",
            "models",
            "clock",
        ]
        assert backend["checks"][1]["found"] == "needs 'reachable'"
        assert "secret" not in json.dumps(report)

    def test_every_check_is_documented_under_its_name(self) -> None:
        from tests.unit.test_docs import DOCS

        for check in (*CHECKS, *FLEET_CHECKS):
            assert f"\n### {check.name}\n" in DOCS["doctor.md"]

    def test_checks_come_after_those_that_they_need(self) -> None:
        seen: set[str] = set()
        for check in CHECKS:
            assert set(check.needs) <= seen
            assert check.name not in seen
            seen.add(check.name)
