"""What a process knows of the engines' caches, and how it counts tokens."""

from typing import Any

import pytest
from integration import house as houses
from integration.house import House, matched

stage = houses.stage
house = houses.house


async def test_match_in_whole_blocks_short_of_the_last(house: House) -> None:
    """min(resident, floor((n-1)/B)*B), all of it in the first tier."""
    resident = 170
    request_id, _ = await house.send([*range(resident)])
    chosen = (await house.settled(request_id))["chosen"]
    for n in (1, 15, 16, 17, 32, 33, 160, 161, 170, 400):
        told = await house.explain([*range(n)])
        expected = min(resident // 16, (n - 1) // 16) * 16
        assert told["grade"] == "exact"
        assert told["prompt_tokens"] == n
        tiers = matched(told)
        assert tiers.pop(chosen) == {"gpu": expected, "host": 0, "disk": 0}, n
        assert [*tiers.values()] == [{"gpu": 0, "host": 0, "disk": 0}]


async def test_classes_sum_to_the_prompt(house: House) -> None:
    """Of each request and of all; what the engine forgot is unpredicted."""
    prompts = [[*range(320)], [*range(400)], [7] * 33, [*range(400)]]
    ends = []
    for at, prompt in enumerate(prompts):
        if at == 3:
            for engine in house.engines:
                engine.held.clear()
        ends.append(await house.settled((await house.send(prompt))[0]))
    for prompt, end in zip(prompts, ends, strict=True):
        assert sum(end["outcome"]["tokens"].values()) == len(prompt)
    assert ends[1]["outcome"]["tokens"]["hit"] == 320
    assert ends[3]["outcome"]["tokens"]["unpredicted"] == 384
    _, state = await house.proxy.admin("/api/state")
    total = sum(map(len, prompts))
    assert state["tokens"].pop("prompt") == total
    assert sum(state["tokens"].values()) == total
    twice = total - state["tokens"]["hit"] - state["tokens"]["cold"]
    assert state["paid_twice_ratio"] == pytest.approx(twice / total)


async def test_lora_and_salt_keep_prompts_apart(house: House) -> None:
    """What one of them has cached is nothing to the others."""
    prompt = [*range(200)]
    await house.settled((await house.send(prompt))[0])
    others: list[dict[str, Any]] = [
        {"model": "tuned"},
        {"cache_salt": "s"},
        {"model": "tuned", "cache_salt": "s"},
    ]
    for other in others:
        before = matched(await house.explain(prompt, **other))
        assert all(tiers["gpu"] == 0 for tiers in before.values()), other
        request_id, reply = await house.send(prompt, **other)
        end = await house.settled(request_id)
        assert end["outcome"]["cached_tokens"] == 0
        assert reply.value("x-warmroute-matched-tokens") == "0"
        after = matched(await house.explain(prompt, **other))
        assert max(tiers["gpu"] for tiers in after.values()) == 192


async def test_the_index_stays_below_its_cap_and_learns_on(house: House) -> None:
    """Full, it drops old blocks; the newest prompt is found again."""
    cap = 2**20
    sizes = []
    for at in range(130):
        await house.send([*range(at * 20_000, at * 20_000 + 16_000)])
        if at % 5 == 0:
            _, state = await house.proxy.admin("/api/state")
            assert state["index"]["cap_bytes"] == cap
            sizes.append(state["index"]["bytes"])
    assert max(sizes) <= cap
    assert max(sizes) > 0.8 * cap, "never full: the test shows nothing"
    newest = await house.explain([*range(2_580_000, 2_596_000)])
    assert max(one["gpu"] for one in matched(newest).values()) == 15_984
