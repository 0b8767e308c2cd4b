"""One trace from a client over warmroute to a real vLLM engine."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from engines.traced_vllm import Traced
from integration.otlp_receiver import OtlpReceiver, ReceivedSpan
from traced.client import TracingClient
from traced.front import traced_front
from two_vllm.engines import EngineOptions

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="session"),
]

NAMES = [
    "POST /v1/chat/completions",
    "ask a question",
    "chat tiny",
    "llm_request",
    "warmroute.route",
]
SERVER = {
    *("http.request.method", "http.route", "http.response.status_code", "url.path"),
    *("url.scheme", "server.address", "server.port", "client.address"),
    *("network.protocol.version", "user_agent.original", "warmroute.request_id"),
    "warmroute.sampled_by",
}
ROUTE = {
    *("warmroute.policy", "warmroute.candidates", "warmroute.backend"),
    *("warmroute.reason", "warmroute.grade", "warmroute.view", "warmroute.score"),
    *("warmroute.block_size", "warmroute.prompt.blocks"),
    *("warmroute.prefix.matched_blocks", "warmroute.prefix.best_matched_blocks"),
}
CLIENT = {
    *("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"),
    *("gen_ai.request.stream", "gen_ai.request.max_tokens"),
    *("gen_ai.request.temperature", "gen_ai.conversation.id", "gen_ai.response.id"),
    *("gen_ai.response.model", "gen_ai.response.finish_reasons"),
    *("gen_ai.response.time_to_first_chunk", "gen_ai.usage.input_tokens"),
    *("gen_ai.usage.output_tokens", "gen_ai.usage.cache_read.input_tokens"),
    *("warmroute.backend", "warmroute.predicted_cached_tokens"),
    *("warmroute.prediction_error_tokens", "server.address", "server.port"),
    "http.response.status_code",
}


@pytest_asyncio.fixture(loop_scope="session")
async def spans(
    traced: Traced,
    http: aiohttp.ClientSession,
    engine_options: EngineOptions,
    tmp_path: Path,
) -> dict[str, ReceivedSpan]:
    """Return the spans of the second of two questions of one chat, by name."""
    url = traced.collector.url
    model = (engine_options.model_name, str(engine_options.model))
    async with traced_front(traced.view.url, url, model, tmp_path, http) as front:
        client = TracingClient(url, http)
        messages = [{"role": "user", "content": "What is a block table? " * 8}]
        trace_id = ""
        for _ in range(2):
            trace_id = await client.chat(front, model[0], messages, 8)
        await asyncio.to_thread(client.close)
        return await joined(traced.collector, trace_id)


async def joined(collector: OtlpReceiver, trace_id: str) -> dict[str, ReceivedSpan]:
    """Wait for all spans of a trace."""

    def found() -> dict[str, ReceivedSpan]:
        mine = [one for one in collector.spans if one.trace_id == trace_id]
        return {one.name: one for one in mine}

    await collector.wait_until(lambda: len(found()) >= len(NAMES), 30)
    return found()


async def test_client_warmroute_and_vllm_are_one_tree(
    spans: dict[str, ReceivedSpan],
) -> None:
    """Each hangs below the one before it, and within its time."""
    assert sorted(spans) == NAMES
    server, client, chat, engine, route = (spans[name] for name in NAMES)
    assert client.parent_id == ""
    assert server.parent_id == client.span_id
    assert route.parent_id == chat.parent_id == server.span_id
    assert engine.parent_id == chat.span_id
    assert [server.kind, route.kind, chat.kind] == ["server", "internal", "client"]
    assert set(server.attributes) == SERVER
    assert set(route.attributes) == ROUTE
    assert set(chat.attributes) == CLIENT
    facts = chat.attributes
    told = engine.attributes
    assert facts["gen_ai.provider.name"] == "vllm"
    assert facts["gen_ai.usage.input_tokens"] == told["gen_ai.usage.prompt_tokens"]
    assert facts["gen_ai.usage.output_tokens"] == told["gen_ai.usage.completion_tokens"]
    assert facts["gen_ai.usage.cache_read.input_tokens"] > 0
    assert facts["gen_ai.response.finish_reasons"] == ["length"]
    assert [event[0] for event in chat.events] == ["warmroute.first_token"]
    assert server.start_ns <= chat.start_ns <= chat.end_ns <= server.end_ns
