"""A process that tokenizes, in front of embedded engines that say what they had."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from conformance.rig import post
from integration import served
from integration.engine_process import TinyEngine, serve_tiny
from integration.served import Served, Stage
from unit.token_files import CHATML, tiny_files, write_files

CHAT = "/v1/chat/completions"
WORDS = "as it was, so it is, and so it will be. "
stage = served.stage

Open = Callable[..., Awaitable[tuple[Served, list[TinyEngine]]]]


@pytest.fixture
async def house(stage: Stage, tmp_path: Path) -> AsyncIterator[Open]:
    """Start two engines and the process in front of them, with a tokenizer."""
    write_files(tmp_path / "tiny", tiny_files())
    write_files(tmp_path / "other", tiny_files(CHATML.replace("assistant", "model")))
    async with AsyncExitStack() as stack:

        async def start(tokenizer: str) -> tuple[Served, list[TinyEngine]]:
            engines = [
                await stack.enter_async_context(serve_tiny(num_blocks=2000))
                for _ in "ab"
            ]
            backends = [
                {"name": name, "url": str(engine.url), "engine": "embedded"}
                for name, engine in zip("ab", engines, strict=True)
            ]
            proxy = await stage.spawn(
                backends=backends,
                policy="expected_ttft",
                models=[{"name": "tiny", "tokenizer": tokenizer}],
            )
            await proxy.ready(2)
            return proxy, engines

        yield start


async def say(proxy: Served, messages: list[dict[str, str]], **more: Any) -> Any:
    """Send a chat; returns the answer's usage and the decision."""
    fields = {"model": "tiny", "messages": messages, "max_tokens": 4, **more}
    number = len(proxy.clients)
    head = f"x-request-id: r{number}\r\nx-warmroute-explain: 1\r\n"
    reply = await proxy.request(post(fields, CHAT, head))
    assert reply.status == 200, reply
    answer = json.loads(reply.body)
    path = f"/api/decisions/r{number}"
    decision = await proxy.until(path, lambda one: one.get("outcome"))
    return answer, decision


async def test_predictions_are_what_the_engines_report(house: Open) -> None:
    """Eight chats of three turns, short ones and ones that need a thread."""
    proxy, _ = await house("./tiny")
    chats: list[list[dict[str, str]]] = [[] for _ in range(8)]
    for turn in range(3):
        for at, chat in enumerate(chats):
            text = f"{at}.{turn} " + WORDS * (1 + 9 * (at % 3))
            chat.append({"role": "user", "content": text})
            answer, decision = await say(proxy, chat)
            usage = answer["usage"]
            assert decision["grade"] == "exact"
            assert decision["prompt_tokens"] == usage["prompt_tokens"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            # Without events the answer's own tokens, four of them, are not known of.
            assert 0 <= cached - decision["outcome"]["predicted_tokens"] <= 16
            assert cached > 0 or turn == 0
            said = answer["choices"][0]["message"]["content"]
            chat.append({"role": "assistant", "content": said})
    parity = 'warmroute_tokenizer_parity{backend="a",model="tiny"} 1.0'
    await proxy.until("/metrics", lambda text: parity in text)


async def test_explaining_is_exact_too(house: Open) -> None:
    proxy, engines = await house("./tiny/tokenizer.json")
    body = {"model": "tiny", "messages": [{"role": "user", "content": WORDS * 40}]}
    asked = {"path": CHAT, "headers": {}, "body": body}
    status, told = await proxy.admin("/api/explain", "POST", json=asked)
    tokens = await engines[0].post("/tokenize", **body)
    assert (status, told["grade"]) == (200, "exact")
    assert told["prompt_tokens"] == tokens["count"]


async def test_the_engine_can_be_asked_instead(house: Open) -> None:
    proxy, _ = await house("engine")
    messages = [{"role": "user", "content": WORDS * 20}]
    for turn in range(2):
        answer, decision = await say(proxy, messages)
        assert decision["grade"] == "exact"
        assert decision["prompt_tokens"] == answer["usage"]["prompt_tokens"]
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert decision["outcome"]["predicted_tokens"] == cached
        assert (cached > 0) == (turn > 0)


async def test_a_wrong_template_is_found_out(house: Open) -> None:
    """Grade, gauge and log say it, and requests are answered all the same."""
    proxy, _ = await house("./other")
    line = await proxy.logged("tokenizer_differs", 2)
    assert line["check"] == "chat"
    assert "here and" in line["difference"]
    _, decision = await say(proxy, [{"role": "user", "content": WORDS}])
    assert decision["grade"] == "estimated"
    parity = 'warmroute_tokenizer_parity{backend="b",model="tiny"} 0.0'
    await proxy.until("/metrics", lambda text: parity in text)


async def test_a_reload_brings_a_tokenizer_and_takes_it_away(house: Open) -> None:
    proxy, _ = await house("none")
    messages = [{"role": "user", "content": WORDS}]
    for tokenizer, grade in (("./tiny", "exact"), ("none", "estimated")):
        proxy.write(models=[{"name": "tiny", "tokenizer": tokenizer}])
        status, _ = await proxy.admin("/api/reload", "POST")
        assert status == 200
        assert (await say(proxy, messages))[1]["grade"] == grade


async def test_pipelined_requests_are_answered_in_order(house: Open) -> None:
    """A long prompt is tokenized in a thread while a short one waits behind it."""
    proxy, _ = await house("./tiny")
    client = await proxy.connect()
    bodies = [
        {"model": "tiny", "messages": [{"role": "user", "content": text}]}
        for text in (WORDS * 60, "hi", WORDS * 50)
    ]
    ids = [f"p{at}" for at in range(len(bodies))]
    for request_id, body in zip(ids, bodies, strict=True):
        extra = f"x-request-id: {request_id}\r\n"
        await client.send(post({**body, "max_tokens": 2}, CHAT, extra))
    for request_id in ids:
        reply = await client.receive()
        assert reply.status == 200
        assert reply.value("x-request-id") == request_id


async def test_a_client_that_leaves_while_its_prompt_is_tokenized(house: Open) -> None:
    """Nothing is sent, nothing stays reserved, the next one is served."""
    proxy, _ = await house("./tiny")
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x " * 400_000}]}
    for _ in range(4):
        client = await proxy.connect()
        await client.send(post({**body, "max_tokens": 2}, CHAT))
        client.close()
    await say(proxy, [{"role": "user", "content": WORDS * 30}])
    state = await proxy.until(
        "/api/state",
        lambda told: all(one["load"]["requests"] == 0 for one in told["backends"]),
    )
    assert {one["state"] for one in state["backends"]} == {"up"}
