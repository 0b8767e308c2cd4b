"""The adapters against fake engines on real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from unit.fake_engine import FakeEngine

from warmroute.adapters import endpoint as endpoint_module
from warmroute.adapters.base import BackendRefused, Endpoint, EngineFacts, Health
from warmroute.adapters.openai import OpenAIAdapter
from warmroute.adapters.registry import adapters, detect
from warmroute.adapters.sglang.client import SGLangAdapter
from warmroute.adapters.sglang.questions import as_sglang_asks
from warmroute.adapters.vllm.client import VLLMAdapter
from warmroute.policies.errors import (
    BackendUnavailable,
    ConfigError,
    ProtocolMismatch,
)

Ask = Callable[..., Endpoint]


class FakeResolver(AbstractResolver):
    """Know no host."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def close(self) -> None:
        """Close nothing."""


@pytest.fixture
async def engines() -> AsyncIterator[Callable[..., Any]]:
    """Start fake engines, and stop them afterwards."""
    started = []

    async def start(kind: str, **attributes: Any) -> Any:
        engine = await FakeEngine(kind).start()
        started.append(engine)
        for name, value in attributes.items():
            assert hasattr(engine, name)
            setattr(engine, name, value)
        return engine

    yield start
    for engine in started:
        await engine.stop()


@pytest.fixture
async def ask() -> AsyncIterator[Ask]:
    """Make endpoints over one session."""
    async with aiohttp.ClientSession() as session:

        def make(engine: Any, key: str | None = None, timeout_s: float = 5) -> Endpoint:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            return Endpoint(session, engine.url, headers, timeout_s)

        yield make


class TestVLLM:
    async def test_tells_what_its_metrics_and_version_say(
        self, engines: Any, ask: Ask
    ) -> None:
        engine = await engines("vllm")
        assert await VLLMAdapter().facts(ask(engine)) == EngineFacts(
            version="0.32.0",
            block_size=32,
            capacity_tokens=3200,
            kv_usage=0.25,
            running=2,
            waiting=5,
            boot_id="1000.0",
            dp_ranks=1,
        )

    async def test_asks_the_version_once(self, engines: Any, ask: Ask) -> None:
        engine = await engines("vllm")
        known = await VLLMAdapter().facts(ask(engine))
        assert await VLLMAdapter().facts(ask(engine), known) == known
        assert engine.calls["/version"] == 1

    async def test_adds_up_data_parallel_engines(self, engines: Any, ask: Ask) -> None:
        page = b"""\
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="50"} 1.0
vllm:num_requests_running{engine="0"} 3.0
vllm:num_requests_running{engine="1"} 4.0
vllm:kv_cache_usage_perc{engine="0"} 0.2
vllm:kv_cache_usage_perc{engine="1"} 0.4
"""
        engine = await engines("vllm", bodies={"/metrics": page})
        facts = await VLLMAdapter().facts(ask(engine))
        assert (facts.capacity_tokens, facts.running, facts.dp_ranks) == (2400, 7, 2)
        assert facts.kv_usage == pytest.approx(0.3)

    async def test_leaves_unknown_what_is_not_told(
        self, engines: Any, ask: Ask
    ) -> None:
        """A missing number is unknown, never idle."""
        engine = await engines("vllm", statuses={"/metrics": 404, "/version": 404})
        assert await VLLMAdapter().facts(ask(engine)) == EngineFacts()
        page = (
            b'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1\n'
            b"vllm:num_requests_waiting NaN\n"
        )
        engine = await engines("vllm", bodies={"/metrics": page, "/version": b"{}"})
        assert await VLLMAdapter().facts(ask(engine)) == EngineFacts(
            block_size=16, dp_ranks=1
        )

    async def test_refuses_a_malformed_metrics_page(
        self, engines: Any, ask: Ask
    ) -> None:
        page = b"vllm:num_requests_waiting{engine= oops\n"
        engine = await engines("vllm", bodies={"/metrics": page})
        with pytest.raises(ProtocolMismatch, match="malformed"):
            await VLLMAdapter().facts(ask(engine))


class TestSGLang:
    async def test_tells_settings_and_loads_over_all_ranks(
        self, engines: Any, ask: Ask
    ) -> None:
        engine = await engines("sglang")
        facts = await SGLangAdapter().facts(ask(engine))
        assert facts.kv_usage == pytest.approx(0.6)
        assert facts.without_load() == EngineFacts(
            version="0.5.23",
            block_size=16,
            capacity_tokens=8192,
            boot_id="seed 1000",
            reports_cached_tokens=True,
            dp_ranks=2,
        )
        assert (facts.running, facts.waiting, facts.queued_tokens) == (2, 4, 600)

    async def test_asks_the_scheduler_once_an_incarnation(
        self, engines: Any, ask: Ask
    ) -> None:
        engine = await engines("sglang")
        known = await SGLangAdapter().facts(ask(engine))
        await SGLangAdapter().facts(ask(engine), known)
        assert (engine.calls["/server_info"], engine.calls["/v1/loads"]) == (1, 2)

    async def test_reads_metrics_where_loads_and_info_are_missing(
        self, engines: Any, ask: Ask
    ) -> None:
        engine = await engines(
            "sglang", statuses={"/v1/loads": 404, "/server_info": 404}
        )
        assert await SGLangAdapter().facts(ask(engine)) == EngineFacts(
            block_size=16, capacity_tokens=4096, kv_usage=0.25, running=2, waiting=5
        )
        assert engine.calls["/get_server_info"] == 1

    async def test_the_release_is_told_with_the_loads_where_info_has_none(
        self, engines: Any, ask: Ask
    ) -> None:
        loads = {"version": "0.5.23", "loads": []}
        engine = await engines("sglang", statuses={"/server_info": 404})
        engine.bodies["/v1/loads"] = msgspec.json.encode(loads)
        assert (await SGLangAdapter().facts(ask(engine))).version == "0.5.23"

    @pytest.mark.parametrize(
        ("given", "asked"),
        [
            ({"add_generation_prompt": True, "add_special_tokens": False}, {}),
            (
                {"add_generation_prompt": False, "add_special_tokens": False},
                {"add_generation_prompt": False, "add_special_tokens": False},
            ),
            (
                {"add_generation_prompt": False, "continue_final_message": True},
                {"continue_final_message": True},
            ),
            ({"chat_template_kwargs": {"a": 1}}, {"chat_template_kwargs": {"a": 1}}),
        ],
    )
    def test_a_chat_is_asked_about_as_it_is_answered(
        self, given: dict[str, object], asked: dict[str, object]
    ) -> None:
        message = {"role": "assistant", "content": "x", "reasoning": "y"}
        renamed = {"role": "assistant", "content": "x", "reasoning_content": "y"}
        question = as_sglang_asks({"messages": [message], **given})
        assert question == {"messages": [renamed], **asked}

    @pytest.mark.parametrize(
        "given",
        [
            {"chat_template": "x"},
            {"chat_template_kwargs": {"enable_thinking": True}},
            {"chat_template_kwargs": {"reasoning_effort": "low"}},
        ],
    )
    def test_a_chat_that_sglang_reads_otherwise_is_not_asked_about(
        self, given: dict[str, object]
    ) -> None:
        assert as_sglang_asks({"messages": [], **given}) is None

    async def test_aborts_by_request_id(self, engines: Any, ask: Ask) -> None:
        engine = await engines("sglang")
        await SGLangAdapter().abort(ask(engine), "r1")
        assert engine.posted == [{"rid": "r1"}]

    async def test_takes_loras_by_base_and_the_name_default(
        self, engines: Any, ask: Ask
    ) -> None:
        engine = await engines("sglang")
        cards = {card.id: card for card in await SGLangAdapter().models(ask(engine))}
        taken = [
            name
            for name in ("m", "m:lora", "default", "x", "x:lora", ":m", "m:")
            if SGLangAdapter().serves(name, cards)
        ]
        assert taken == ["m", "m:lora", "default"]


class TestOpenAI:
    async def test_promises_nothing_but_models(self, engines: Any, ask: Ask) -> None:
        engine = await engines("openai")
        adapter = OpenAIAdapter()
        assert await adapter.probe(ask(engine)) == Health(True)
        assert [card.id for card in await adapter.models(ask(engine))] == ["m"]
        assert await adapter.facts(ask(engine)) == EngineFacts()
        await adapter.abort(ask(engine), "r1")
        assert not engine.posted

    async def test_lists_loras_with_their_parent(self, engines: Any, ask: Ask) -> None:
        engine = await engines("vllm", models=("m", "l"), parents={"l": "m"})
        base, lora = await OpenAIAdapter().models(ask(engine))
        assert (base.parent, lora.parent, lora.max_model_len) == (None, "m", 4096)
        assert lora.raw["id"] == "l"

    @pytest.mark.parametrize(
        ("status", "ready"), [(200, True), (401, True), (404, True), (503, False)]
    )
    async def test_is_alive_whatever_it_answers_but_errors_of_its_own(
        self, engines: Any, ask: Ask, status: int, ready: bool
    ) -> None:
        engine = await engines("openai", statuses={"/v1/models": status})
        assert (await OpenAIAdapter().probe(ask(engine))).ready is ready

    async def test_knows_no_models_where_there_is_no_list(
        self, engines: Any, ask: Ask
    ) -> None:
        engine = await engines("openai", statuses={"/v1/models": 404})
        assert await OpenAIAdapter().models(ask(engine)) == []

    @pytest.mark.parametrize(
        "body", [b"", b"{", b"[]", b"{}", b'{"data": [1]}', b'{"data": [{}]}', b"\xff"]
    )
    async def test_refuses_a_list_that_is_none(
        self, engines: Any, ask: Ask, body: bytes
    ) -> None:
        engine = await engines("openai", bodies={"/v1/models": body})
        with pytest.raises(ProtocolMismatch, match="/v1/models"):
            await OpenAIAdapter().models(ask(engine))

    async def test_carries_the_key(self, engines: Any, ask: Ask) -> None:
        engine = await engines("openai", key="secret")
        assert await OpenAIAdapter().models(ask(engine, key="secret"))
        with pytest.raises(ProtocolMismatch, match="set the backend's api_key"):
            await OpenAIAdapter().models(ask(engine))

    async def test_generates_one_token_of_a_model(self, engines: Any, ask: Ask) -> None:
        engine = await engines("openai")
        assert (await OpenAIAdapter().generate(ask(engine), "m")).ready
        assert engine.posted == [{"prompt": "Hi", "max_tokens": 1, "model": "m"}]
        engine.statuses["/v1/completions"] = 500
        assert not (await OpenAIAdapter().generate(ask(engine), "m")).ready


class TestEndpoint:
    async def test_tells_nobody_listening_from_no_answer(
        self, engines: Any, ask: Ask
    ) -> None:
        engine = await engines("openai", hanging={"/health"})
        with pytest.raises(BackendUnavailable, match=r"within 0\.05 s") as caught:
            await ask(engine, timeout_s=0.05).get("/health")
        assert not isinstance(caught.value, BackendRefused)
        await engine.stop()
        with pytest.raises(BackendRefused):
            await ask(engine).get("/health")

    async def test_bounds_the_answer(
        self, engines: Any, ask: Ask, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(endpoint_module, "MAX_ANSWER_BYTES", 1000)
        engine = await engines(
            "openai", bodies={"/ok": b"x" * 1000, "/big": b"x" * 1001}
        )
        assert len((await ask(engine).get("/ok")).body) == 1000
        with pytest.raises(ProtocolMismatch, match="more than 1000 bytes"):
            await ask(engine).get("/big")
        answer = await ask(engine).allowing(1001, 1.0).get("/big")
        assert len(answer.body) == 1001

    async def test_follows_no_redirect(self, engines: Any, ask: Ask) -> None:
        engine = await engines("openai", statuses={"/v1/models": 302})
        assert (await ask(engine).get("/v1/models")).status == 302
        with pytest.raises(ProtocolMismatch, match="HTTP 302"):
            await ask(engine).get_object("/v1/models")

    async def test_reports_what_is_not_http(self, ask: Ask) -> None:
        async def babble(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(babble, "127.0.0.1", 0)
        async with server:
            fake = FakeEngine()
            fake.port = server.sockets[0].getsockname()[1]
            with pytest.raises(ProtocolMismatch, match="broke HTTP: ") as caught:
                await ask(fake, key="sk-hunter2").get("/health")
        assert "hunter2" not in str(caught.value)
        assert "ClientResponseError" not in str(caught.value)

    async def test_says_in_words_that_a_host_has_no_address(self) -> None:
        """As the doctor does, with the resolver's own reason."""
        connector = aiohttp.TCPConnector(resolver=FakeResolver())
        async with aiohttp.ClientSession(connector=connector) as session:
            endpoint = Endpoint(session, "http://engine.invalid:8000", {}, 5)
            with pytest.raises(BackendUnavailable) as caught:
                await endpoint.get("/health")
        assert str(caught.value) == (
            "cannot connect to http://engine.invalid:8000: Name or service not known"
        )

    async def test_says_in_words_that_an_engine_hung_up(self, ask: Ask) -> None:
        async def hang_up(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        async with server:
            fake = FakeEngine()
            fake.port = server.sockets[0].getsockname()[1]
            with pytest.raises(BackendUnavailable) as caught:
                await ask(fake).get("/health")
        assert str(caught.value) == f"{fake.url}/health failed: Server disconnected"


class TestDetection:
    @pytest.mark.parametrize("kind", ["vllm", "sglang", "openai"])
    async def test_goes_by_the_owner_of_the_models(
        self, engines: Any, ask: Ask, kind: str
    ) -> None:
        engine = await engines(kind)
        models = await OpenAIAdapter().models(ask(engine))
        assert (await detect(ask(engine), models)).name == kind

    @pytest.mark.parametrize("kind", ["vllm", "sglang", "openai"])
    async def test_goes_by_its_own_endpoints_where_the_owner_says_nothing(
        self, engines: Any, ask: Ask, kind: str
    ) -> None:
        engine = await engines(kind)
        assert (await detect(ask(engine), [])).name == kind

    async def test_gives_no_verdict_without_an_answer(
        self, engines: Any, ask: Ask
    ) -> None:
        engine = await engines("openai", hanging={"/version"})
        with pytest.raises(BackendUnavailable):
            await detect(ask(engine, timeout_s=0.05), [])

    def test_names_the_engines_known_for_one_that_is_not(self) -> None:
        with pytest.raises(
            ConfigError, match=r"known: embedded, openai, sglang, vllm.*'vllm'"
        ):
            adapters.get("vlm")
