"""Blocks that running sequences of a real vLLM gave back, and got back."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from engines.test_vllm_plugin_budget import (
    ENOUGH,
    FULL,
    answer,
    distance,
    refer,
    run_together,
)
from engines.vllm_plugin_pace import pause, position, post, runs, slowly, worker
from engines.vllm_plugin_rig import BLOCK, PluginEngine, prompt
from engines.vllm_plugin_shared import Plugged

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

MUCH = 256 << 20
LATER = {"method": "sinks", "tokens": 2_000, "host_bytes": MUCH}
"""A budget that no request of these tests comes up to by itself."""


@pytest_asyncio.fixture(loop_scope="session")
async def engine(plugged: Plugged) -> AsyncIterator[PluginEngine]:
    engine = plugged.engine
    assert await engine.is_whole()
    await engine.kv("budget", LATER)
    yield engine
    await post(engine, "resume")  # a test that failed may have left it paused
    await engine.kv("budget", FULL)
    await nothing_is_left(engine)


async def copied(engine: PluginEngine) -> int:
    """Return the bytes that are said to be held."""
    held: int = (await engine.kv("snapshot"))["copied_bytes"]
    return held


async def until_copied(engine: PluginEngine) -> None:
    async with asyncio.timeout(30):
        while not await copied(engine):
            pass


async def nothing_is_left(engine: PluginEngine) -> None:
    """Wait for the step behind the last request; then there is neither copy nor use."""
    async with asyncio.timeout(30):
        while await copied(engine):
            pass
    await engine.complete(prompt("pulse", 40))
    assert await worker(engine, "count_copies") == {"blocks": 0}
    assert await engine.is_whole()


async def restore(engine: PluginEngine, name: str, **fields: Any) -> dict[str, Any]:
    return await engine.kv("restore", {"request_id": name, **fields})


@pytest.mark.parametrize("arm", ["untouched", "restored", "spoilt", "gone"])
async def test_what_was_restored_is_what_was_there(
    engine: PluginEngine, arm: str
) -> None:
    """Between two steps blocks go and come back: the continuation is the same."""
    tokens = prompt("restored", 10 * BLOCK + 7)
    await answer(engine, tokens, 1)  # from here on all but the end of it is cached
    _, alone = await answer(engine, tokens, 600)
    name = f"restored-{arm}"
    async with slowly(engine):
        other = asyncio.create_task(
            engine.complete(prompt("beside", 40), 2_000, request_id=f"beside-{arm}")
        )
        await runs(engine, f"beside-{arm}", other)
        task = asyncio.create_task(
            engine.complete(
                tokens, 600, logprobs=1, return_token_ids=True, request_id=name
            )
        )
        await runs(engine, name, task)
        await pause(engine)
    if arm == "untouched":
        other.cancel()
    else:
        await give_back(engine, name, other)
    if arm == "spoilt":
        assert (await worker(engine, "spoil_copies"))["blocks"] > 3
    if arm in ("restored", "spoilt"):
        told = await restore(engine, name)
        assert told["changed"] == told["named"] > 3
        assert await copied(engine) == 0
    await post(engine, "resume")
    choice = (await task)["choices"][0]
    found = distance(choice["logprobs"]["token_logprobs"], alone)
    is_same = found < ENOUGH
    assert is_same == (arm in ("untouched", "restored")), found


async def give_back(engine: PluginEngine, name: str, other: asyncio.Task[Any]) -> None:
    """Have a paused request give back blocks; the end of another makes for a step."""
    told = await restore(engine, name, hold_tokens=4 * BLOCK)
    assert told == {"changed": 0, "named": 0}
    other.cancel()
    await until_copied(engine)


async def test_from_then_on_attention_sees_all_of_it(engine: PluginEngine) -> None:
    """Tokens in between saw the holes, and count with what they made of them."""
    await engine.kv("budget", {**LATER, "tokens": 4 * BLOCK})
    tokens = prompt("seen-again", 10 * BLOCK + 7)
    async with slowly(engine):
        others = [
            asyncio.create_task(engine.complete(prompt(f"by-{n}", 600 + n), 300))
            for n in range(7)
        ]
        await run_together(engine, 7, others)
        task = asyncio.create_task(
            engine.complete(
                tokens, 300, logprobs=1, return_token_ids=True, request_id="seen-again"
            )
        )
        await runs(engine, "seen-again", task)
        while await position(engine, "seen-again") < len(tokens) + 60:
            assert not task.done()
        await pause(engine)
    at = await position(engine, "seen-again")
    assert at < len(tokens) + 240
    told = await restore(engine, "cmpl-seen-again")
    assert told["changed"] == told["named"] > 5
    await post(engine, "resume")
    choice = (await task)["choices"][0]
    await asyncio.gather(*others)
    said, logs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
    case = {"prompt": tokens, "answer": said, "block_size": BLOCK, "num_first": 1}
    held = {**case, "num_held": 4}
    scores = await refer(engine, [{**held, "restored_at": at + 1}, held, case])
    assert distance(logs, scores[0]) < ENOUGH
    num_before = at + 1 - len(tokens)
    for never, some in (
        ("came back", slice(num_before + 1, None)),
        ("went", slice(num_before)),
    ):
        control = scores[1 if never == "came back" else 2]
        assert distance(logs[some], control[some]) > 5 * ENOUGH, never


async def test_a_request_holds_what_it_was_told_to_from_then_on(
    engine: PluginEngine,
) -> None:
    """Of eleven blocks nine are gone; with six allowed the newest four return."""
    await engine.kv("budget", {"method": "window", "tokens": 64, "host_bytes": MUCH})
    tokens = prompt("told", 10 * BLOCK + 7)
    async with slowly(engine):
        task = asyncio.create_task(engine.complete(tokens, 800, request_id="told"))
        await until_copied(engine)
        await pause(engine)
    block_bytes = (
        await copied(engine) // (await worker(engine, "count_copies"))["blocks"]
    )
    told = await restore(engine, "told", hold_tokens=6 * BLOCK)
    assert told["changed"] == 4
    assert told["named"] >= 9
    assert await copied(engine) == (told["named"] - 4) * block_bytes
    again = await restore(engine, "told", hold_tokens=6 * BLOCK)
    assert again == {"changed": 0, "named": told["named"] - 4}
    await post(engine, "resume")
    await task


async def test_copies_stay_below_their_cap(engine: PluginEngine) -> None:
    budget = {"method": "window", "tokens": 64}
    status, told = await engine.ask("budget", {**budget, "host_bytes": 1})
    assert (status, told["error"]["code"]) == (400, "invalid_kv_budget")
    block_bytes = int(told["error"]["message"].split("allowed here: ")[1].split(",")[0])
    await engine.kv("budget", {**budget, "host_bytes": 3 * block_bytes + 1})
    async with slowly(engine):
        tasks = [
            asyncio.create_task(
                engine.complete(
                    prompt(f"capped-{n}", 300), 600, request_id=f"capped-{n}"
                )
            )
            for n in range(2)
        ]
        for n, task in enumerate(tasks):
            await runs(engine, f"capped-{n}", task)
        await until_copied(engine)
        await pause(engine)
    assert await copied(engine) == 3 * block_bytes
    assert await worker(engine, "count_copies") == {"blocks": 3}
    brought = [await restore(engine, f"capped-{n}") for n in range(2)]
    assert sum(one["changed"] for one in brought) == 3
    assert sum(one["named"] for one in brought) >= 7
    await post(engine, "resume")
    await asyncio.gather(*tasks)


async def test_a_batch_that_is_restored_while_it_runs_leaves_nothing(
    engine: PluginEngine,
) -> None:
    """Five with a common prefix beside three that outgrow the pool; two are aborted."""
    before = await engine.metric("vllm:num_preemptions_total")
    await engine.kv("budget", FULL)
    brought, refused = 0, set[str]()

    async def restore_some(until: Callable[[], bool]) -> None:
        nonlocal brought
        while not until():
            held = chance.choice([None, 8 * BLOCK, 16 * BLOCK])
            fields = {} if held is None else {"hold_tokens": held}
            name = f"b{chance.randrange(5)}"
            status, told = await engine.ask("restore", {"request_id": name, **fields})
            brought += told["changed"] if status == 200 else 0
            refused.update([told["error"]["code"]] if status != 200 else [])

    async with slowly(engine):
        large = [
            asyncio.create_task(engine.complete(prompt(f"l{n}", 20 * BLOCK), 1_100))
            for n in range(3)
        ]
        await run_together(engine, 3, large)
        await engine.kv("budget", {**LATER, "tokens": 6 * BLOCK})
        shared, chance = prompt("batch", 5 * BLOCK), random.Random(0)
        tasks = [
            asyncio.create_task(
                engine.complete(
                    shared + prompt(f"b{n}", 5 * BLOCK + n), 1_000, request_id=f"b{n}"
                )
            )
            for n in range(5)
        ]
        await run_together(engine, 8, [*large, *tasks])
        await restore_some(lambda: brought > 40 or any(task.done() for task in tasks))
        tasks[0].cancel()
        tasks[2].cancel()
    await restore_some(lambda: all(task.done() for task in tasks))
    await asyncio.gather(*large)
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(one, BaseException) for one in done) == 2
    assert brought > 40
    assert refused <= {"kv_no_room", "kv_request_not_running"}
    assert await engine.metric("vllm:num_preemptions_total") > before


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"request_id": "nobody"}, (409, "kv_request_not_running")),
        ({"request_id": "small", "hold_tokens": 95}, (400, "invalid_kv_budget")),
        ({"request_id": "small", "skip_blocks": 1}, (400, "kv_request_invalid")),
        ({"hashes": [1], "hold_tokens": 96}, (400, "kv_request_invalid")),
        ({"hashes": [1]}, (501, "kv_verb_unsupported")),
    ],
)
async def test_what_cannot_be_restored_is_refused(
    engine: PluginEngine, body: dict[str, Any], told: tuple[int, str]
) -> None:
    async with slowly(engine):
        task = asyncio.create_task(
            engine.complete(prompt("small", 100), 1_900, request_id="small")
        )
        await runs(engine, "small", task)
        status, found = await engine.ask("restore", body)
        assert (status, found["error"]["code"]) == told
        task.cancel()
        await asyncio.wait([task])
    assert (await engine.kv("capabilities"))["running"] == {"restore": True}
