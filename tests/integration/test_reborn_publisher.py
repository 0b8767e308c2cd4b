"""Engines that start anew while their HTTP stays up: only their events tell."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import zmq
import zmq.asyncio
from conformance.raw_engine import Request, answer
from conformance.rig import PATIENCE_S, post
from integration import served
from integration.caching_engine import BLOCK, CachingEngine, caching_engine
from integration.publisher import Publisher
from integration.served import Served, Stage

stage = served.stage

TEXT = "the quick brown fox jumps over the lazy dog " * 40


def prompt(number: int) -> list[int]:
    return [number] * (2 * BLOCK + 1)


def stored(number: int) -> dict[str, object]:
    """Return two blocks, the engine's event of them."""
    return {
        "type": "BlockStored",
        "block_hashes": [2 * number, 2 * number + 1],
        "parent_block_hash": None,
        "token_ids": [number] * (2 * BLOCK),
        "block_size": BLOCK,
        "medium": "GPU",
    }


class House:
    """A process in front of one fake vLLM, whose publisher the test plays."""

    def __init__(self, proxy: Served, publisher: Publisher) -> None:
        self.proxy = proxy
        self.publisher = publisher

    async def incarnation(self, at_least: int) -> int:
        state = await self.proxy.until(
            "/api/state",
            lambda state: state["backends"][0]["view"]["incarnation"] >= at_least,
        )
        number: int = state["backends"][0]["view"]["incarnation"]
        return number

    async def matched(self, asked: list[int] | str) -> int:
        body = {"model": "m", "prompt": asked}
        request = {"path": "/v1/completions", "headers": {}, "body": body}
        _, answer = await self.proxy.admin("/api/explain", "POST", json=request)
        return sum(answer["candidates"][0]["matched_tokens"].values())

    async def until_matched(self, asked: list[int] | str, tokens: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await self.matched(asked) != tokens:  # noqa: ASYNC110 - polled
                await asyncio.sleep(0.01)

    async def warm(self, *numbers: int) -> None:
        """Announce blocks, and serve a text, of which no event speaks."""
        for number in numbers:
            await self.publisher.publish(stored(number))
        await self.until_matched(prompt(numbers[-1]), 2 * BLOCK)
        body = {"model": "m", "prompt": TEXT}
        reply = await self.proxy.request(post(body, "/v1/completions"))
        assert reply.status == 200
        assert await self.matched(TEXT) > 0

    async def rebear(self) -> None:
        """Let the publisher go, and another one come where it was."""
        await self.publisher.close()
        where = self.publisher.address
        assert where.replay is not None
        context = self.publisher.context
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    self.publisher = Publisher(
                        context, where.endpoint, replay=where.replay
                    )
                except zmq.ZMQError:
                    await asyncio.sleep(0.01)
                else:
                    return

    async def has_forgotten(self) -> None:
        """The restart is told once, and nothing from before it is promised."""
        assert await self.incarnation(2) == 2
        assert await self.matched(prompt(1)) == await self.matched(TEXT) == 0
        await self.until_matched(prompt(1), 0)
        assert await self.incarnation(2) == 2


def fake_vllm(publisher: Publisher, has_replay: bool) -> CachingEngine:
    """Return a fake that tells where the publisher is, and answers any prompt."""
    engine = caching_engine()
    where = publisher.address
    source = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": where.endpoint.replace("127.0.0.1", "*"),
        "topic": where.topic,
        "replay_endpoint": where.replay if has_replay else None,
    }

    async def script(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.path == "/kv_event_sources":
            writer.write(answer(json.dumps({"0": source}).encode()))
        elif request.path == "/v1/completions":
            usage = {"prompt_tokens": 400, "completion_tokens": 1}
            writer.write(answer(json.dumps({"id": "x", "usage": usage}).encode()))
        else:
            writer.write(answer(b"{}", "404 Not Found"))

    engine.script = script
    return engine


@pytest.fixture
async def context() -> AsyncIterator[zmq.asyncio.Context]:
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture(params=[True])
async def house(
    request: pytest.FixtureRequest, stage: Stage, context: zmq.asyncio.Context
) -> AsyncIterator[House]:
    """Start all of it; the parameter is whether messages are sent again."""
    publisher = Publisher(context)
    engine = await fake_vllm(publisher, request.param).start()
    stage.engines.append(engine)
    entry = {"name": "a", "url": engine.url, "engine": "vllm"}
    proxy = await stage.spawn(backends=[entry], health={"interval_s": 0.5})
    await proxy.ready(1)
    await proxy.until(
        "/api/state", lambda state: state["backends"][0]["view"]["source"] == "events"
    )
    home = House(proxy, publisher)
    async with asyncio.timeout(PATIENCE_S):  # ZMQ connects when it pleases
        while (await view(proxy))["seq"] is None:
            await publisher.publish()
            await asyncio.sleep(0.05)
    yield home
    await home.publisher.close()


async def view(proxy: Served) -> Any:
    _, state = await proxy.admin("/api/state")
    return state["backends"][0]["view"]


async def test_numbers_that_fall_back_with_other_content(house: House) -> None:
    await house.warm(1)
    house.publisher.begin_anew()
    await house.publisher.publish(stored(5))
    await house.until_matched(prompt(5), 2 * BLOCK)
    await house.has_forgotten()


async def test_an_idle_publisher_that_has_nothing_to_send_again(house: House) -> None:
    await house.warm(1)
    await house.rebear()
    await house.has_forgotten()


async def test_a_new_stream_that_is_longer_than_the_old_one(house: House) -> None:
    await house.warm(1, 2)
    await house.rebear()
    for number in range(5, 45):
        await house.publisher.publish(stored(number))
    await house.until_matched(prompt(44), 2 * BLOCK)
    await house.has_forgotten()


@pytest.mark.parametrize("house", [False], indirect=True)
async def test_a_publisher_without_replay_that_comes_back(house: House) -> None:
    await house.warm(1)
    await house.rebear()
    await house.has_forgotten()
