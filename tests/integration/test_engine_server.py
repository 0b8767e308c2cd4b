"""The embedded engine over HTTP: the tiny model, OpenAI's library, a process."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest
from integration.engine_process import TinyEngine, run_engine, serve_tiny

WORDS = "the quick brown fox jumps over the lazy dog and runs away "
HI: Any = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture
async def tiny() -> AsyncIterator[TinyEngine]:
    async with serve_tiny() as tiny:
        yield tiny


@pytest.fixture
async def client(tiny: TinyEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{tiny.url}/v1", api_key="unused", max_retries=0
    ) as client:
        yield client


async def test_openai_library_chats(client: openai.AsyncOpenAI) -> None:
    """Models, an answer in one piece, and the same one as a stream."""
    assert [model.id async for model in client.models.list()] == ["tiny"]
    asked: Any = {"model": "tiny", "messages": HI, "max_tokens": 8, "seed": 1}
    whole = await client.chat.completions.create(
        **asked, extra_body={"ignore_eos": True}
    )
    stream = await client.chat.completions.create(
        **asked,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert whole.choices[0].finish_reason == "length"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 8
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8
    assert text
    assert whole.choices[0].message.role == "assistant"


async def test_openai_library_completes(client: openai.AsyncOpenAI) -> None:
    """Several prompts with several choices, log probabilities, and a stream."""
    asked: Any = {"model": "tiny", "prompt": ["one", "two"], "max_tokens": 4}
    more = {"ignore_eos": True}
    whole = await client.completions.create(
        **asked, n=2, logprobs=3, seed=5, extra_body=more
    )
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    for choice in whole.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.top_logprobs is not None
        assert len(choice.logprobs.token_logprobs or ()) == 4
        assert all(len(top) <= 3 for top in choice.logprobs.top_logprobs)
    stream = await client.completions.create(**asked, stream=True, extra_body=more)
    reasons = [c.choices[0].finish_reason async for c in stream]
    assert reasons.count("length") == 2


async def test_openai_library_gets_the_errors(client: openai.AsyncOpenAI) -> None:
    """Classes, parameters and codes are those that programs test for."""
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="gpt", messages=HI)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        await client.completions.create(model="tiny", prompt="x", echo=True)
    assert (refused.value.param, refused.value.code) == (
        "echo",
        "unsupported_parameter",
    )
    with pytest.raises(openai.BadRequestError) as long:
        await client.completions.create(model="tiny", prompt=[1] * 10_000)
    assert long.value.code == "context_length_exceeded"


async def test_a_prompt_seen_before_is_cached(tiny: TinyEngine) -> None:
    """All whole blocks but that of the last token hit, and metrics count them."""
    body = {"prompt": WORDS * 4, "max_tokens": 1, "return_token_ids": True}
    cold = await tiny.post("/v1/completions", **body)
    warm = await tiny.post("/v1/completions", **body)
    num_prompt = cold["usage"]["prompt_tokens"]
    expected = (num_prompt - 1) // 16 * 16
    assert expected > 0
    assert cold["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert warm["usage"]["prompt_tokens_details"] == {"cached_tokens": expected}
    ids = cold["choices"][0]["prompt_token_ids"]
    again = await tiny.post("/v1/completions", prompt=ids, max_tokens=1)
    assert again["usage"]["prompt_tokens_details"] == {"cached_tokens": expected}
    salted = await tiny.post("/v1/completions", **body, cache_salt="s")
    assert salted["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert await tiny.metric("vllm:prefix_cache_queries_total") == 4 * num_prompt
    assert await tiny.metric("vllm:prefix_cache_hits_total") == 2 * expected
    assert await tiny.metric("vllm:prompt_tokens_total") == 4 * num_prompt


async def test_metrics_follow_the_engine(tiny: TinyEngine) -> None:
    """Latencies have one observation a request or a gap."""
    await tiny.post("/v1/completions", prompt="x", max_tokens=5, ignore_eos=True)
    assert await tiny.metric("vllm:time_to_first_token_seconds_count") == 1
    assert await tiny.metric("vllm:inter_token_latency_seconds_count") == 4
    assert await tiny.metric("vllm:e2e_request_latency_seconds_count") == 1
    assert await tiny.metric("vllm:generation_tokens_total") == 5
    assert await tiny.metric("vllm:num_requests_running") == 0


async def test_chat_and_tokenize_agree(tiny: TinyEngine) -> None:
    """A proxy that asks for the tokens gets those that the engine uses."""
    asked = {"messages": [*HI, {"role": "assistant", "content": "Once ünicode 🦊"}]}
    tokens = await tiny.post("/tokenize", **asked)
    answer = await tiny.post(
        "/v1/chat/completions", **asked, max_tokens=1, return_token_ids=True
    )
    assert answer["prompt_token_ids"] == tokens["tokens"]
    text = (await tiny.post("/detokenize", tokens=tokens["tokens"]))["prompt"]
    assert "Once ünicode 🦊" in text
    plain = await tiny.post("/tokenize", prompt="ünicode 🦊", add_special_tokens=False)
    back = await tiny.post("/detokenize", tokens=plain["tokens"])
    assert back == {"prompt": "ünicode 🦊"}


async def test_a_seed_repeats_the_choices(tiny: TinyEngine) -> None:
    """Other seeds give other ones, and so do the choices of one request."""
    body = {"prompt": "once", "max_tokens": 24, "n": 2, "ignore_eos": True}

    async def draw(seed: int) -> list[list[int]]:
        answer = await tiny.post(
            "/v1/completions", **body, seed=seed, return_token_ids=True
        )
        return [choice["token_ids"] for choice in answer["choices"]]

    first = await draw(1)
    assert await draw(1) == first
    assert await draw(2) != first
    assert first[0] != first[1]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_blocks(
    tiny: TinyEngine, stream: bool
) -> None:
    """The request ends at once, long before its last token."""
    body = {
        "prompt": WORDS,
        "max_tokens": 1500,
        "n": 4,
        "ignore_eos": True,
        "stream": stream,
    }
    async with aiohttp.ClientSession(tiny.url) as leaving:
        asking = asyncio.create_task(leaving.post("/v1/completions", json=body))
        async with asyncio.timeout(30):
            while not await tiny.referenced():
                pass  # each question lets the engine go on
        if asking.done():
            asking.result().close()  # a stream has begun
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    async with asyncio.timeout(30):
        while await tiny.referenced():
            pass  # each question lets the engine go on
    assert tiny.engine.stats().generation_tokens < 4 * 1500


async def test_a_stop_string_is_cut_over_http(tiny: TinyEngine) -> None:
    """The text ends in front of it, in one piece and in a stream."""
    body: dict[str, Any] = {"prompt": "once", "max_tokens": 64, "ignore_eos": True}
    body |= {"temperature": 0}
    text = (await tiny.post("/v1/completions", **body))["choices"][0]["text"]
    stop = text[5:8]
    cut = (await tiny.post("/v1/completions", **body, stop=stop))["choices"][0]
    assert cut["text"] == text[: text.index(stop)]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", stop)
    async with tiny.session.post(
        "/v1/completions", json={**body, "stop": [stop], "stream": True}
    ) as response:
        events = (await response.text()).split("\n\n")[:-2]
    pieces = [json.loads(e.removeprefix("data: "))["choices"][0] for e in events]
    assert "".join(piece["text"] for piece in pieces) == cut["text"]
    assert pieces[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize("method", ["window", "sinks", "h2o", "infinigen", "full"])
async def test_a_token_budget_is_kept_to(tiny: TinyEngine, method: str) -> None:
    """Each method answers, and gives all of its blocks back."""
    budget = {"method": method} | ({} if method == "full" else {"tokens": 32})
    body = {"prompt": WORDS * 2, "max_tokens": 8, "ignore_eos": True}
    answer = await tiny.post("/v1/completions", **body, kv_budget=budget)
    assert answer["usage"]["completion_tokens"] == 8
    assert await tiny.referenced() == 0


async def test_the_process_serves_and_drains() -> None:
    """It says when it is ready; asked to end, it finishes what it has begun."""
    async with run_engine("--port", "0", "--num-blocks", "64") as run:
        await run.until_ready()
        assert "serves tiny: 64 blocks of 16 (1024 tokens" in run.ready
        async with aiohttp.ClientSession(run.url) as session:
            async with session.get("/health") as response:
                assert response.status == 200
            body = {"prompt": "x", "max_tokens": 200, "ignore_eos": True}
            async with session.post(
                "/v1/completions", json={**body, "stream": True}
            ) as response:
                await response.content.readline()
                run.signal(signal.SIGTERM)
                text = await response.text()
        assert text.endswith("data: [DONE]\n\n")
        code, error = await run.ended()
    assert code == 0, error
    assert "Traceback" not in error


async def test_a_second_signal_ends_the_process_at_once() -> None:
    """What runs is aborted, and its stream says so."""
    async with run_engine("--port", "0", "--num-blocks", "2000") as run:
        await run.until_ready()
        async with aiohttp.ClientSession(run.url) as session:
            body = {"prompt": "x", "max_tokens": 1900, "n": 8, "ignore_eos": True}
            async with session.post(
                "/v1/completions", json={**body, "stream": True}
            ) as response:
                await response.content.readline()
                run.signal(signal.SIGTERM)
                run.signal(signal.SIGINT)
                text = await response.text()
        code, error = await run.ended()
    assert '"finish_reason":"abort"' in text
    assert code == 0, error
    assert "Traceback" not in error


async def test_the_process_publishes_where_it_says() -> None:
    """KV events are announced by their real address, KV control is open."""
    async with run_engine(
        *("--port", "0", "--kv-events", "tcp://127.0.0.1:0"),
        *("--kv-events-topic", "kv", "--served-model-name", "a", "b"),
    ) as run:
        await run.until_ready()
        async with aiohttp.ClientSession(run.url) as session:
            async with session.get("/kv_event_sources") as response:
                (source,) = (await response.json()).values()
            async with session.get("/v1/models") as response:
                names = [card["id"] for card in (await response.json())["data"]]
            async with session.get("/warmroute/kv/capabilities") as response:
                verbs = (await response.json())["verbs"]
    assert source["topic"] == "kv"
    assert source["endpoint"] in run.ready
    assert names == ["a", "b"]
    assert verbs["snapshot"] is verbs["budget"] is True
    assert "--host-blocks" in verbs["offload"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--eviction", "lur"), 2, "unknown eviction policy 'lur'"),
        (("--max-model-len", "100000000"), 2, "max_model_len is 100000000"),
        (("--max-num-seqs", "900"), 2, "max_shared_tokens is 512"),
        (("--host", "no.such.host.invalid"), 2, "--host 'no.such.host.invalid'"),
        (("--kv-events", "nonsense"), 2, "nonsense"),
        (("--model", __file__), 1, "GGUF"),
    ],
)
async def test_a_start_that_fails_says_why(
    arguments: tuple[str, ...], code: int, words: str
) -> None:
    """One line, and an exit code by kind: 2 bad usage, 1 failed."""
    async with run_engine("--port", "0", *arguments) as run:
        ended, error = await run.ended()
    assert words in error
    assert "Traceback" not in error
    assert ended == code


async def test_a_taken_port_ends_the_start(tiny: TinyEngine) -> None:
    """The exit code is 1, before any model is loaded."""
    port = tiny.url.rpartition(":")[2]
    async with run_engine("--port", port) as run:
        code, error = await run.ended()
    assert code == 1
    assert f"cannot listen on 127.0.0.1:{port}: address already in use" in error
