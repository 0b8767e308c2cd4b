"""Blocks of a real vLLM that are chosen by attention, with SmolLM2."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio
from engines.vllm_plugin_rig import BLOCK, PluginEngine
from engines.vllm_plugin_shared import Plugged

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

FULL = {"method": "full"}
SCORED = {"method": "attention", "tokens": 6 * BLOCK}
FILLER = (
    "The river runs past the mill and under the old stone bridge. ",
    "In the morning the baker sweeps the street before his shop. ",
    "Two boys carry a basket of apples up the hill. ",
    "The wind turns in the evening, and the boats come home. ",
)
CODE = " 7 3 9 4 1 8"
ENOUGH = 0.05
"""Nats that 16-bit floats may make in another batch."""


@pytest_asyncio.fixture(loop_scope="session")
async def engine(plugged: Plugged) -> AsyncIterator[PluginEngine]:
    yield plugged.scored
    await plugged.scored.kv("budget", FULL)
    assert await plugged.scored.is_whole()


async def encode(engine: PluginEngine, text: str) -> list[int]:
    body = {"model": engine.base.model_name, "prompt": text}
    async with engine.http.post(f"{engine.url}/tokenize", json=body) as response:
        tokens: list[int] = (await response.json())["tokens"]
        return tokens


async def vault(engine: PluginEngine, place: int) -> list[int]:
    """Return a tale in which a number is told once, and asked for at the end."""
    chance = random.Random(place)
    lines = [chance.choice(FILLER) for _ in range(22)]
    lines[place] = f"The secret code of the vault is{CODE}. "
    text = "".join(lines) + "What was told above? The secret code of the vault is"
    return await encode(engine, text)


async def answer(
    engine: PluginEngine, tokens: Sequence[int], length: int, **fields: Any
) -> tuple[str, list[float]]:
    """Generate; return the text and the log-likelihood of each token."""
    told = await engine.complete(tokens, length, logprobs=1, **fields)
    choice = told["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


@pytest.mark.parametrize("place", [3, 5, 7])
async def test_what_the_question_wants_stays_where_the_oldest_would_go(
    engine: PluginEngine, place: int
) -> None:
    """The number is in one of the blocks that ``sinks`` gives back: the control."""
    tokens = await vault(engine, place)
    said = {}
    for method in ("full", "attention", "sinks"):
        budget = FULL if method == "full" else {**SCORED, "method": method}
        await engine.kv("budget", budget)
        said[method] = (await answer(engine, tokens, 12))[0]
    assert said["full"] == said["attention"] == CODE
    assert CODE.strip() not in said["sinks"]


async def test_blocks_that_another_uses_stay(engine: PluginEngine) -> None:
    """While its prompt is shared, a sequence under a budget sees all of it."""
    tokens = await vault(engine, 4)
    _, alone = await answer(engine, tokens, 24, ignore_eos=True)
    whole = asyncio.create_task(engine.complete(tokens, 200))
    while not await engine.metric("vllm:num_requests_running"):
        assert not whole.done()
    await engine.kv("budget", {"method": "attention", "tokens": 3 * BLOCK})
    _, beside = await answer(engine, tokens, 24, ignore_eos=True)
    assert not whole.done()
    await whole
    _, after = await answer(engine, tokens, 24, ignore_eos=True)
    assert distance(beside, alone) < ENOUGH
    assert distance(after, alone) > 2 * ENOUGH  # the negative control


async def test_nothing_is_left_of_batches_preemptions_and_aborts(
    engine: PluginEngine,
) -> None:
    before = await engine.metric("vllm:num_preemptions_total")
    head = (await vault(engine, 5))[: 5 * BLOCK]
    whole = [
        asyncio.create_task(engine.complete([*head, 400 + at], 400)) for at in range(3)
    ]
    while await engine.metric("vllm:num_requests_running") < 3:
        assert not any(one.done() for one in whole)
    await engine.kv("budget", SCORED)
    held = [
        asyncio.create_task(engine.complete([*head, 500 + at] * 2, 300))
        for at in range(4)
    ]
    while await engine.metric("vllm:num_requests_running") < 5:
        assert not any(one.done() for one in whole)
    held[1].cancel()
    await asyncio.wait([held[1]])
    done = await asyncio.gather(*whole, held[0], held[2], held[3])
    said = [one["usage"]["completion_tokens"] for one in done]
    assert said == [400] * 3 + [300] * 3
    assert await engine.metric("vllm:num_preemptions_total") > before
    async with asyncio.timeout(20):
        while await engine.metric("vllm:num_requests_running"):
            await engine.complete(head[:40], 1)


async def test_without_the_option_it_is_refused(plugged: Plugged) -> None:
    status, told = await plugged.engine.ask("budget", SCORED)
    assert status == 501
    assert "WARMROUTE_KV_ATTENTION=1" in told["error"]["message"]
    assert (await plugged.engine.kv("budget"))["method"] == "full"


def distance(ones: Sequence[float], others: Sequence[float]) -> float:
    return max(abs(one - other) for one, other in zip(ones, others, strict=True))
