"""Budgets inside running sequences of a real vLLM, and what they are measured by."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from engines.vllm_plugin_rig import BLOCK, PluginEngine, prompt
from engines.vllm_plugin_shared import EventView, Plugged

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

REFERENCE = Path(__file__).with_name("vllm_plugin_reference.py")
FULL = {"method": "full"}
ENOUGH = 0.02
"""Nats that 16-bit floats may make; without its holes the reference is 0.3 away."""


@pytest_asyncio.fixture(loop_scope="session")
async def engine(plugged: Plugged) -> AsyncIterator[PluginEngine]:
    assert await plugged.engine.is_whole()
    yield plugged.engine
    await plugged.engine.kv("budget", FULL)


@pytest.fixture
def view(plugged: Plugged) -> EventView:
    return plugged.view


async def answer(
    engine: PluginEngine, tokens: Sequence[int], length: int
) -> tuple[list[int], list[float]]:
    """Generate; return the tokens and the log-likelihood of each."""
    told = await engine.complete(tokens, length, logprobs=1, return_token_ids=True)
    choice = told["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


async def refer(engine: PluginEngine, cases: list[dict[str, Any]]) -> list[list[float]]:
    """Have the same answers scored by other software."""
    child = await asyncio.create_subprocess_exec(
        str(engine.base.environment / "bin" / "python"),
        str(REFERENCE),
        str(engine.base.model),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await child.communicate(json.dumps(cases).encode())
    assert child.returncode == 0, err.decode()[-2_000:]
    found: list[list[float]] = json.loads(out)
    return found


async def run_together(
    engine: PluginEngine, count: int, tasks: Sequence[asyncio.Task[Any]]
) -> None:
    """Wait until so many run, or the first one has ended on a slow machine."""
    while not any(task.done() for task in tasks):
        if await engine.metric("vllm:num_requests_running") >= count:
            return


def distance(ones: Sequence[float], others: Sequence[float]) -> float:
    return max(abs(one - other) for one, other in zip(ones, others, strict=True))


async def test_attention_sees_exactly_what_is_held(engine: PluginEngine) -> None:
    """Beside seven others whose long prompts are computed meanwhile."""
    budgets: list[tuple[dict[str, Any], int, int]] = [
        ({"method": "sinks", "tokens": 4 * BLOCK}, 1, 4),
        ({"method": "sinks", "share": 0.5, "sinks": 40}, 2, 5),
        ({"method": "window", "tokens": 5 * BLOCK + 3}, 0, 5),
    ]
    cases, found = [], []
    for at, (budget, num_first, num_held) in enumerate(budgets):
        await engine.kv("budget", budget)
        tokens = prompt(f"seen-{at}", 10 * BLOCK + 7)
        others = [
            asyncio.create_task(engine.complete(prompt(f"by-{at}-{n}", 600 + n), 9))
            for n in range(7)
        ]
        said, logs = await answer(engine, tokens, 100)
        await asyncio.gather(*others)
        found.append(logs)
        case = {"prompt": tokens, "answer": said, "block_size": BLOCK}
        cases.append(case | {"num_first": num_first, "num_held": num_held})
        cases.append(case | {"num_first": num_first})
    scores = await refer(engine, cases)
    for at, logs in enumerate(found):
        assert distance(logs, scores[2 * at]) < ENOUGH
        assert distance(logs, scores[2 * at + 1]) > 5 * ENOUGH  # the negative control
    assert await engine.is_whole()


async def test_what_saw_a_part_only_is_never_cached(engine: PluginEngine) -> None:
    cached = {}
    for name, budget in (("full", FULL), ("held", {"method": "sinks", "tokens": 128})):
        await engine.kv("budget", budget)
        tokens = prompt(f"published-{name}", 10 * BLOCK)
        said, _ = await answer(engine, tokens, 4 * BLOCK)
        await engine.kv("budget", FULL)
        cached[name] = await engine.cached([*tokens, *said, 7])
    # The prompt was computed in full, and stays cached although it was given back.
    assert cached == {"full": 13 * BLOCK, "held": 10 * BLOCK}


async def test_a_budget_makes_room_for_a_batch(engine: PluginEngine) -> None:
    """Eight that together need twice the pool run at once within it."""
    shared = prompt("roomy", 5 * BLOCK)
    prompts = [shared + prompt(f"roomy-{at}", 5 * BLOCK) for at in range(8)]
    preempted = []
    for budget in (FULL, {"method": "sinks", "tokens": 12 * BLOCK}):
        await engine.kv("budget", budget)
        before = await engine.metric("vllm:num_preemptions_total")
        done = await asyncio.gather(*(engine.complete(one, 700) for one in prompts))
        assert [one["usage"]["completion_tokens"] for one in done] == [700] * 8
        preempted.append(await engine.metric("vllm:num_preemptions_total") - before)
        assert await engine.is_whole()
    assert preempted[0] > 0
    assert preempted[1] == 0


async def test_others_keep_what_a_budget_gives_up(
    engine: PluginEngine, view: EventView
) -> None:
    """One without a budget and a retention hold the blocks of one that has one."""
    tokens = prompt("others", 12 * BLOCK)
    _, alone = await answer(engine, tokens, 300)
    whole = asyncio.create_task(answer(engine, tokens, 300))
    await run_together(engine, 1, [whole])
    await engine.kv("retain", {"token_ids": tokens[: 4 * BLOCK], "ttl_s": 60})
    await engine.kv("budget", {"method": "sinks", "tokens": 3 * BLOCK})
    held = asyncio.create_task(answer(engine, tokens, 200))
    while not (whole.done() and held.done()):
        await engine.kv("flush")
        await engine.complete(prompt("wash", 40 * BLOCK))
    assert distance((await whole)[1], alone) < ENOUGH
    assert distance((await held)[1], alone[:200]) > 5 * ENOUGH
    snapshot = await engine.kv("snapshot")
    assert sum(one["refs"] for one in snapshot["blocks"]) == 4
    await engine.kv("release", {"token_ids": tokens[: 4 * BLOCK]})
    assert await engine.is_whole()
    after = await engine.kv("snapshot")
    await view.catch_up(after["seq"])
    assert view.cached == set()


async def test_preempted_and_aborted_ones_leave_nothing(
    engine: PluginEngine, view: EventView
) -> None:
    """Three without a budget outgrow the pool; one with holes is put back and ends."""
    before = await engine.metric("vllm:num_preemptions_total")
    large = [
        asyncio.create_task(engine.complete(prompt(f"large-{at}", 20 * BLOCK), 1_300))
        for at in range(3)
    ]
    await run_together(engine, 3, large)
    await engine.kv("budget", {"method": "sinks", "tokens": 4 * BLOCK})
    held = [
        asyncio.create_task(engine.complete(prompt(f"held-{at}", 8 * BLOCK), 1_300))
        for at in range(3)
    ]
    await run_together(engine, 5, [*large, *held])
    held[1].cancel()
    await asyncio.wait([held[1]])
    done = await asyncio.gather(*large, held[0], held[2])
    assert [one["usage"]["completion_tokens"] for one in done] == [1_300] * 5
    assert await engine.metric("vllm:num_preemptions_total") > before
    async with asyncio.timeout(20):
        while await engine.metric("vllm:num_requests_running"):
            await engine.complete(prompt("pulse", 40))
    snapshot = await engine.kv("snapshot")
    await view.catch_up(snapshot["seq"])
    assert {one["hash"] for one in snapshot["blocks"]} == view.cached
    assert not any(one["refs"] for one in snapshot["blocks"])
    assert await engine.is_whole()


@pytest.mark.parametrize(
    ("budget", "told"),
    [
        ({"method": "h2o", "tokens": 320}, "in whole blocks"),
        ({"method": "infinigen", "tokens": 320}, "'restore' can"),
        ({"method": "sink", "tokens": 320}, "did you mean 'sinks'"),
        ({"method": "sinks"}, "either tokens or share"),
        ({"method": "sinks", "tokens": 95}, "96 or more"),
        ({"method": "sinks", "share": 0}, "> 0.0"),
        ({"method": "full", "share": 0.5}, "with method 'full'"),
        ({"method": "window", "share": 0.5, "sinks": 4}, "with method 'window'"),
    ],
)
async def test_budgets_that_make_no_sense_are_refused(
    engine: PluginEngine, budget: dict[str, Any], told: str
) -> None:
    status, found = await engine.ask("budget", budget)
    assert (status, told in found["error"]["message"]) == (400, True), found
    assert (await engine.kv("budget"))["method"] == "full"


async def test_an_engine_with_a_host_tier_has_none(plugged: Plugged) -> None:
    told = (await plugged.hosted.kv("capabilities"))["verbs"]["budget"]
    assert told.startswith("unsupported: a KV connector")
    status, _ = await plugged.hosted.ask("budget", {"method": "sinks", "tokens": 320})
    assert status == 501
