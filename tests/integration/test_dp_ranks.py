"""Data-parallel ranks behind one address: each is heard, chosen, and held to it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import zmq
from conformance.rig import PATIENCE_S, Reply, post
from integration import served
from integration.ranked_engine import BLOCK, RankedEngine, ranked_engine
from integration.served import Served, Stage

stage = served.stage

CONFIG = {"policy": "expected_ttft", "health": {"interval_s": 0.5}}


class House:
    """A process in front of one engine of two ranks."""

    def __init__(self, proxy: Served, engine: RankedEngine) -> None:
        self.proxy = proxy
        self.engine = engine
        self.num_sent = 0

    async def view(self) -> Any:
        _, state = await self.proxy.admin("/api/state")
        return state["backends"][0]["view"]

    async def until(self, **facts: Any) -> Any:
        """Wait until the view says so."""
        state = await self.proxy.until(
            "/api/state",
            lambda state: facts.items() <= state["backends"][0]["view"].items(),
        )
        return state["backends"][0]["view"]

    async def until_heard(self) -> None:
        """Wait until the history of both ranks is replayed, once or more often."""
        await self.proxy.until(
            "/api/state",
            lambda state: all(
                rank["status"] == "live" and rank["replays"]
                for rank in state["backends"][0]["view"].get("ranks", [{"status": ""}])
            ),
        )

    async def matched(self, prompt: list[int]) -> int:
        return (await self.explain(prompt))["candidates"][0]["matched_tokens"]["gpu"]

    async def until_matched(self, prompt: list[int], tokens: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await self.matched(prompt) != tokens:
                pass

    async def explain(self, prompt: list[int]) -> Any:
        body = {"model": "m", "prompt": prompt}
        request = {"path": "/v1/completions", "headers": {}, "body": body}
        _, answer = await self.proxy.admin("/api/explain", "POST", json=request)
        return answer

    async def send(self, prompt: list[int], extra: str = "") -> tuple[Reply, Any]:
        """Send token ids; returns the answer and the decision's record."""
        self.num_sent += 1
        name = f"r-{self.num_sent}"
        fields = {"model": "m", "prompt": prompt}
        data = post(fields, "/v1/completions", f"x-request-id: {name}\r\n{extra}")
        reply = await self.proxy.request(data)
        assert reply.status == 200, reply
        _, record = await self.proxy.admin(f"/api/decisions/{name}")
        return reply, record


@pytest.fixture
def context() -> Iterator["zmq.Context[Any]"]:
    context: zmq.Context[Any] = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
async def house(stage: Stage, context: "zmq.Context[Any]") -> AsyncIterator[House]:
    """Start the process and wait until it hears both ranks."""
    engine = ranked_engine(context)
    stage.engines.append(await engine.start())
    entry = {"name": "a", "url": engine.url, "engine": "vllm"}
    proxy = await stage.spawn(backends=[entry], **CONFIG)
    await proxy.ready(1)
    home = House(proxy, engine)
    await home.until_heard()
    yield home
    for rank in engine.ranks:
        rank.publisher.close()


def prompt(seed: int, blocks: int = 4) -> list[int]:
    return [seed * 1000 + at for at in range(blocks * BLOCK + 1)]


async def test_the_rank_that_has_the_prompt_is_chosen(house: House) -> None:
    """Both are followed; the match is the best one's, and the engine is told."""
    zero, one = house.engine.ranks
    zero.serve(prompt(1, 2))
    one.serve(prompt(1, 4))
    zero.serve(prompt(2))
    await house.until_matched(prompt(1), 64)
    await house.until_matched(prompt(2), 64)
    assert (await house.explain(prompt(1)))["rank"] == 1
    for seed, rank in ((1, "1"), (2, "0")):
        _, record = await house.send(prompt(seed))
        outcome = record["outcome"]
        assert outcome["predicted_tokens"] == outcome["cached_tokens"] == 64
        assert (record["rank"], house.engine.asked[-1]) == (int(rank), rank)
        assert [one["backend"] for one in record["candidates"]] == ["a"]


async def test_every_prediction_holds_whatever_rank_is_chosen(house: House) -> None:
    """Prompts that nobody has are spread; those that come again find their rank."""
    for seed in range(12):
        await house.send(prompt(seed))
    for seed in range(12):
        await house.until_matched(prompt(seed), 64)
        _, record = await house.send(prompt(seed))
        assert record["outcome"]["predicted_tokens"] == 64
        assert record["outcome"]["cached_tokens"] == 64
    assert set(house.engine.asked) == {"0", "1"}
    view = await house.until(blocks=48)  # what is promised, is matched before it came
    assert view["seq"] == min(one["seq"] for one in view["ranks"])


async def test_a_client_cannot_choose_the_rank(house: House) -> None:
    house.engine.ranks[1].serve(prompt(1))
    await house.until_matched(prompt(1), 64)
    await house.send(prompt(1), "X-Data-Parallel-Rank: 0\r\n")
    assert house.engine.asked == ["1"]


async def test_one_rank_that_lost_everything_leaves_the_other(house: House) -> None:
    for rank in house.engine.ranks:
        rank.serve(prompt(rank.number))
        await house.until_matched(prompt(rank.number), 64)
    house.engine.ranks[0].clear()
    await house.until_matched(prompt(0), 0)
    assert await house.matched(prompt(1)) == 64


async def test_ranks_that_publish_nothing_are_mirrored_apart(
    stage: Stage, context: "zmq.Context[Any]"
) -> None:
    """What was sent to one is not promised of the other."""
    engine = ranked_engine(context, publishes=False)
    stage.engines.append(await engine.start())
    entry = {"name": "a", "url": engine.url, "engine": "vllm"}
    proxy = await stage.spawn(backends=[entry], **CONFIG)
    await proxy.ready(1)
    house = House(proxy, engine)
    for seed in [*range(8), *range(8)]:
        _, record = await house.send(prompt(seed))
        outcome = record["outcome"]
        assert outcome["predicted_tokens"] == outcome["cached_tokens"]
    assert set(engine.asked) == {"0", "1"}
    assert (await house.view())["source"] == "mirror"
    for rank in engine.ranks:
        rank.publisher.close()
