"""The conductor at work on real engines, watched through the admin port."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from integration.engine_fleet import Fleet, prompt, running_fleet

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTINGS = {"conductor": {"enabled": True, "actions_per_minute": 6000}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """Start two engines once, with small pools and a conductor in front."""
    folder = tmp_path_factory.mktemp("conductor")
    async with running_fleet(folder, 2, "--host-blocks", "64", **SETTINGS) as fleet:
        yield fleet


async def told(fleet: Fleet) -> dict[str, Any]:
    status, answer = await fleet.proxy.admin("/api/conductor")
    assert status == 200
    return dict(answer)


async def chat(fleet: Fleet, seed: int, turns: int, gap_s: float) -> None:
    """Talk so many turns, each of which begins with the one before."""
    tokens = prompt(seed, 160)
    for turn in range(turns):
        await fleet.send(tokens)
        tokens = tokens + prompt(1000 * seed + turn, 32)
        await asyncio.sleep(gap_s)


async def churn(fleet: Fleet) -> None:
    """Send prompts that nobody asks for again, so that pools are written over."""
    for seed in range(50_000, 60_000):
        await fleet.send(prompt(seed, 200))
        await asyncio.sleep(0.05)


async def until_done(fleet: Fleet, kind: str) -> list[dict[str, Any]]:
    """Keep traffic up until an action of a kind was done; returns those."""
    noise = asyncio.create_task(churn(fleet))
    try:
        async with asyncio.timeout(60):
            for seed in range(1, 1000):
                talks = [chat(fleet, 10 * seed + i, 4, 1.2) for i in range(3)]
                await asyncio.gather(*talks)
                actions = (await told(fleet))["actions"]
                found = [one for one in actions if one["kind"] == kind]
                if found:
                    return found
    finally:
        noise.cancel()
        await asyncio.gather(noise, return_exceptions=True)
    return []


async def test_it_acts_records_and_stops_at_once(fleet: Fleet) -> None:
    """Each action has a reason; the switch lets go of all, and nothing follows."""
    actions = await until_done(fleet, "retain")
    assert set(actions[0]) == {
        *("time", "kind", "backend", "hash", "tokens", "reason", "outcome")
    }
    assert actions[0]["reason"].startswith("kept: ")
    assert actions[0]["tokens"] >= 64
    status, answer = await fleet.proxy.admin("/api/conductor/stop", "POST")
    assert (status, answer["stopped"], answer["retained_blocks"]) == (200, True, {})
    done = answer["done"]
    snapshots = await fleet.kv("snapshot")
    held = [
        block
        for one in snapshots.values()
        for block in one["blocks"]
        if block["refs"] and block["tier"] == "gpu"
    ]
    assert held == []
    await chat(fleet, 7, 3, 0.5)
    answer = await told(fleet)
    assert (answer["done"], answer["failures"]) == (done, 0)
    status, answer = await fleet.proxy.admin("/api/conductor/start", "POST")
    assert (status, answer["stopped"]) == (200, False)


async def test_a_session_is_back_from_the_host_before_it_comes(fleet: Fleet) -> None:
    """Its blocks are moved away; when it is due, they are on the pages again."""
    for seed in range(300, 303):  # what comes back, comes back after about a second
        await asyncio.gather(*(chat(fleet, 10 * seed + i, 4, 1.0) for i in range(3)))
    tokens = prompt(777, 160)
    name = (await fleet.send(tokens, "late"))["backend"]
    results = await fleet.kv("offload", session="late", backend=name)
    assert results[name]["changed"] == 10
    async with asyncio.timeout(20):
        while True:
            actions = (await told(fleet))["actions"]
            restored = [one for one in actions if one["kind"] == "restore"]
            if restored:
                break
            await asyncio.sleep(0.1)
    assert (restored[0]["backend"], restored[0]["tokens"]) == (name, 160)
    assert (await fleet.send(tokens))["cached"] == 144
    actions = (await told(fleet))["actions"]
    # Others come back, too, and this one twice if its first blocks are seen late.
    outcomes = [one["outcome"] for one in actions if one["hash"] == restored[0]["hash"]]
    assert any(str(one).startswith("hit: 144 of 160") for one in outcomes), actions[:9]


async def test_a_hot_prefix_is_copied_to_an_idle_engine(fleet: Fleet) -> None:
    """Many requests at a time begin with it, and one engine alone has it."""
    await fleet.kv("flush")
    head = prompt(4242, 160)
    name = (await fleet.send(head + prompt(1, 17)))["backend"]
    other = "ab".replace(name, "")
    async with asyncio.timeout(60):
        for at in range(2, 400):
            await asyncio.gather(
                *(
                    fleet.send(head + prompt(20 * at + i, 17), max_tokens=24)
                    for i in range(3)
                )
            )
            if (await told(fleet))["copied_tokens"]:
                break
            if (await fleet.matched(head + prompt(9, 17)))[other]:
                await fleet.kv("flush", backend=other)
    answer = await told(fleet)
    copies = [one for one in answer["actions"] if one["kind"] == "replicate"]
    assert other in [one["backend"] for one in copies]
    assert answer["copied_tokens"] >= 160
    assert answer["failures"] == 0


async def test_it_is_off_unless_it_is_turned_on(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """It says so, and starting it by hand does not go against the file."""
    async with running_fleet(tmp_path_factory.mktemp("off"), 1) as fleet:
        answer = await told(fleet)
        assert (answer["enabled"], answer["actions"]) == (False, [])
        await fleet.proxy.admin("/api/conductor/start", "POST")
        await chat(fleet, 5, 3, 0.3)
        assert (await told(fleet))["done"] == {}
