"""The SGLang adapter against a real SGLang."""

from array import array
from typing import Any

import pytest
from engines.sglang.engine import MODEL, PAGE, SGLangEngine

from warmroute.adapters.base import EngineFacts, Health
from warmroute.adapters.kv_requests import BlocksRequest, Request
from warmroute.adapters.sglang.client import SGLangAdapter
from warmroute.policies.errors import ClientError

pytestmark = [
    pytest.mark.engines,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
]
ADAPTER = SGLangAdapter()
CHAT = [
    {"role": "system", "content": "Answer in one word."},
    {"role": "user", "content": "Größe? 👋 what"},
]


def tokens(seed: int, length: int = 100) -> list[int]:
    return [(seed * 31 + at * at * 7 + at) % 250 + 3 for at in range(length)]


async def test_is_recognised_and_healthy(sglang: SGLangEngine) -> None:
    cards = await ADAPTER.models(sglang.endpoint)
    assert [(card.id, card.max_model_len) for card in cards] == [(MODEL, 4096)]
    assert await ADAPTER.recognises(sglang.endpoint, cards)
    assert await ADAPTER.probe(sglang.endpoint) == Health(True)
    assert await ADAPTER.generate(sglang.endpoint, MODEL) == Health(True)


async def test_tells_its_facts(sglang: SGLangEngine) -> None:
    facts = await ADAPTER.facts(sglang.endpoint)
    assert facts.boot_id is not None
    assert (facts.kv_usage or 0) < 1
    assert facts.without_load() == EngineFacts(
        version="0.5.23",
        block_size=PAGE,
        capacity_tokens=4096,
        boot_id=facts.boot_id,
        reports_cached_tokens=True,
        dp_ranks=1,
        prefix_caching=True,
    )
    assert (facts.running, facts.waiting, facts.queued_tokens) == (0, 0, 0)


async def test_metrics_tell_the_same_where_loads_do_not(sglang: SGLangEngine) -> None:
    facts = await ADAPTER._with_metrics(sglang.endpoint, EngineFacts())
    assert (facts.block_size, facts.capacity_tokens) == (PAGE, 4096)
    assert (facts.running, facts.waiting) == (0, 0)
    assert facts.kv_usage is not None


async def test_counts_what_was_cached(sglang: SGLangEngine) -> None:
    before = await ADAPTER.cache_counters(sglang.endpoint)
    cached = [await sglang.cached(tokens(1)) for _ in range(2)]
    after = await ADAPTER.cache_counters(sglang.endpoint)
    assert before is not None
    assert after is not None
    assert cached == [0, 96]
    assert (after.queried - before.queried, after.hit - before.hit) == (200, 96)


async def test_usage_reports_cached_tokens(sglang: SGLangEngine) -> None:
    body = {"model": MODEL, "prompt": tokens(2), "max_tokens": 1}
    reported = []
    for _ in range(2):
        usage = (await sglang.post("/v1/completions", body))["usage"]
        details = usage["prompt_tokens_details"] or {}
        reported.append(details.get("cached_tokens", 0))
    assert reported == [0, 96]


async def test_its_events_are_found(sglang: SGLangEngine) -> None:
    (source,) = await ADAPTER.event_sources(sglang.endpoint)
    assert (source.endpoint, source.replay) == (sglang.events, sglang.replay)
    assert (source.topic, source.rank) == (f"kv-{sglang.port}", 0)
    assert source.binds


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
        {"continue_final_message": True, "add_generation_prompt": False},
    ],
    ids=["plain", "tools", "continued"],
)
async def test_a_chat_has_the_tokens_that_it_is_answered_by(
    sglang: SGLangEngine, more: dict[str, Any]
) -> None:
    """The engine's own count of the prompt, and its cache, prove the tokens."""
    messages = list(CHAT)
    if "continue_final_message" in more:
        messages.append({"role": "assistant", "content": "Well"})
    question = {"model": MODEL, "messages": messages, "add_special_tokens": False}
    told = await ADAPTER.tokenize(
        sglang.endpoint,
        {
            **question,
            "add_generation_prompt": True,
            "continue_final_message": False,
            **more,
        },
    )
    assert told is not None
    await sglang.flush()
    await sglang.generate(told)
    body = {"model": MODEL, "messages": messages, "max_tokens": 1, **more}
    usage = (await sglang.post("/v1/chat/completions", body))["usage"]
    assert usage["prompt_tokens"] == len(told)
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert cached == (len(told) - 1) // PAGE * PAGE


async def test_a_text_has_the_tokens_that_it_is_completed_by(
    sglang: SGLangEngine,
) -> None:
    question = {"model": MODEL, "prompt": "Größe? 👋 " * 12}
    told = await ADAPTER.tokenize(sglang.endpoint, question)
    assert isinstance(told, array)
    await sglang.flush()
    await sglang.generate(told)
    usage = (await sglang.post("/v1/completions", {**question, "max_tokens": 1}))[
        "usage"
    ]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert cached == (len(told) - 1) // PAGE * PAGE


async def test_stock_it_flushes_and_says_what_the_rest_needs(
    sglang: SGLangEngine,
) -> None:
    control = ADAPTER.kv_control(sglang.endpoint)
    verbs = (await control.capabilities(Request())).verbs
    assert verbs.pop("flush") is True
    assert all("SGLANG_PLUGINS" in str(reason) for reason in verbs.values())
    await sglang.generate(tokens(3))
    assert (await control.flush(Request())).flushed
    assert await sglang.cached(tokens(3)) == 0
    with pytest.raises(ClientError):
        await control.evict(BlocksRequest(token_ids=tokens(3)))
    assert await ADAPTER.snapshot(sglang.endpoint) is None
