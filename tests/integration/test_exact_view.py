"""The view of a fleet of embedded engines that announce their blocks."""

import random
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from conformance.rig import post
from integration import served
from integration.engine_process import EngineRun, run_engine
from integration.served import Served, Stage

from warmroute.proxy.demo.child import free_port

stage = served.stage

Events = tuple[str, ...]


def events(replay: bool = True) -> Events:
    """Return flags for events on free ports of this machine."""
    flags = ("--kv-events", f"tcp://*:{free_port()}")
    if replay:
        flags += ("--kv-events-replay", f"tcp://*:{free_port()}")
    return flags


@pytest.fixture
async def engines() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def engine(stack: AsyncExitStack, *flags: str, port: int = 0) -> EngineRun:
    """Start an engine whose cache holds 1,536 tokens."""
    run = run_engine("--num-blocks", "96", "--port", str(port), *flags)
    return await (await stack.enter_async_context(run)).until_ready()


class Fleet:
    """A proxy in front of engines, asked one request after the other."""

    def __init__(self, proxy: Served) -> None:
        self.proxy = proxy
        self.num_sent = 0

    async def view(self, name: str) -> Any:
        _, state = await self.proxy.admin("/api/state")
        return next(one["view"] for one in state["backends"] if one["name"] == name)

    async def until_live(self, *names: str) -> None:
        for name in names:
            await self.proxy.until(
                "/api/state",
                lambda state, name=name: any(
                    one["name"] == name and one["view"].get("status") == "live"
                    for one in state["backends"]
                ),
            )

    async def until_reborn(self) -> None:
        """Wait until it is known that the engine restarted, and is up again.

        Its events may tell the first before a probe has found the second.
        """
        await self.proxy.until(
            "/api/state",
            lambda state: (
                state["backends"][0]["view"]["incarnation"] == 2
                and state["backends"][0]["state"] == "up"
                and state["backends"][0]["block_size"] is not None
            ),
        )

    async def send(self, prompt: list[int] | str, **body: Any) -> tuple[int, int]:
        """Send token ids; returns the tokens promised and those served from cache."""
        self.num_sent += 1
        request_id = f"r-{self.num_sent}"
        fields = {"model": "tiny", "prompt": prompt, "max_tokens": 4, **body}
        extra = f"x-request-id: {request_id}\r\n"
        reply = await self.proxy.request(post(fields, "/v1/completions", extra))
        assert reply.status == 200, reply
        _, decision = await self.proxy.admin(f"/api/decisions/{request_id}")
        outcome = decision["outcome"]
        return outcome["predicted_tokens"], outcome["cached_tokens"]

    async def heard(self, **runs: EngineRun) -> None:
        """Wait until the view has all that these engines have announced."""
        async with aiohttp.ClientSession() as http:
            for name, run in runs.items():
                async with http.get(f"{run.url}/warmroute/kv/snapshot") as answer:
                    seq = (await answer.json())["seq"]
                await self.proxy.until(
                    "/api/state",
                    lambda state, name=name, seq=seq: any(
                        one["name"] == name and one["view"]["seq"] == seq
                        for one in state["backends"]
                    ),
                )

    async def matched(self, prompt: list[int] | str, **body: Any) -> dict[str, int]:
        fields = {"model": "tiny", "prompt": prompt, **body}
        request = {"path": "/v1/completions", "headers": {}, "body": fields}
        status, answer = await self.proxy.admin("/api/explain", "POST", json=request)
        assert status == 200, answer
        return {
            one["backend"]: sum(one["matched_tokens"].values())
            for one in answer["candidates"]
        }


async def fleet(stage: Stage, **runs: EngineRun) -> Fleet:
    backends = [{"name": name, "url": run.url} for name, run in runs.items()]
    proxy = await stage.spawn(backends=backends, health={"interval_s": 1})
    await proxy.ready(len(backends))
    return Fleet(proxy)


def tokens(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(200), k=count)


async def test_what_is_promised_is_what_engines_report(
    stage: Stage, engines: AsyncExitStack
) -> None:
    """Chats that grow, in caches too small for them: every request is predicted."""
    runs = {name: await engine(engines, *events()) for name in "ab"}
    one = await fleet(stage, **runs)
    await one.until_live("a", "b")
    rng = random.Random(1)
    chats = [tokens(seed, 40) for seed in range(8)]
    promised = 0
    for _ in range(120):
        chat = rng.choice(chats)
        await one.heard(**runs)
        prediction, cached = await one.send(chat)
        assert prediction == cached
        promised += prediction
        chat += rng.choices(range(200), k=rng.randrange(40))
    assert promised > 0
    _, state = await one.proxy.admin("/api/state")
    assert state["tokens"]["unpredicted"] == 0
    assert state["tokens"]["evicted"] > 0


async def test_a_late_proxy_learns_what_is_cached(
    stage: Stage, engines: AsyncExitStack
) -> None:
    """A proxy that starts before a warm engine knows what it has, by replay."""
    run = await engine(engines, *events())
    first = await fleet(stage, a=run)
    await first.until_live("a")
    await first.send(tokens(1, 100))
    second = await fleet(stage, a=run)
    await second.until_live("a")
    assert await second.matched(tokens(1, 100)) == {"a": 96}
    view = await second.view("a")
    assert (view["source"], view["gaps"]) == ("events", 0)
    assert view["replays"] >= 1, "and once more if ZMQ connects after it"


async def test_without_replay_a_late_proxy_asks_for_a_snapshot(
    stage: Stage, engines: AsyncExitStack
) -> None:
    """What is cached is asked for once, and events go on from there."""
    run = await engine(engines, *events(replay=False))
    first = await fleet(stage, a=run)
    await first.send(tokens(1, 100))
    await first.send(tokens(3, 100), cache_salt="s")
    second = await fleet(stage, a=run)
    await second.until_live("a")
    assert await second.matched(tokens(1, 100)) == {"a": 96}
    assert await second.matched(tokens(3, 100)) == {"a": 0}
    assert await second.matched(tokens(3, 100), cache_salt="s") == {"a": 96}
    assert await second.send(tokens(2, 100)) == (0, 0)
    assert await second.matched(tokens(2, 100)) == {"a": 96}


async def test_a_restarted_engine_has_nothing(
    stage: Stage, engines: AsyncExitStack
) -> None:
    """No ghost hit, though it comes back at the same address with the same model."""
    port, flags = free_port(), events()
    run = await engine(engines, *flags, port=port)
    one = await fleet(stage, a=run)
    await one.until_live("a")
    await one.send(tokens(1, 100))
    assert await one.matched(tokens(1, 100)) == {"a": 96}
    run.signal(signal.SIGKILL)
    await run.ended()
    await engine(engines, *flags, port=port)
    await one.until_reborn()
    assert (await one.view("a"))["blocks"] == 0
    assert await one.send(tokens(1, 100)) == (0, 0)
    assert (await one.view("a"))["incarnation"] == 2


async def reborn(
    stage: Stage, engines: AsyncExitStack, flags: Events, later: Events
) -> tuple[Fleet, EngineRun]:
    """Restart an engine that has served one request, with other flags."""
    port = free_port()
    run = await engine(engines, *flags, port=port)
    one = await fleet(stage, a=run)
    await one.until_live("a")
    await one.send(tokens(1, 100))
    run.signal(signal.SIGKILL)
    await run.ended()
    run = await engine(engines, *later, port=port)
    await one.until_reborn()
    return one, run


async def test_an_engine_that_comes_back_with_other_blocks_is_followed(
    stage: Stage, engines: AsyncExitStack
) -> None:
    flags = events()
    one, run = await reborn(stage, engines, flags, (*flags, "--block-size", "32"))
    await one.send(tokens(2, 100))
    await one.heard(a=run)
    assert await one.matched(tokens(2, 100)) == {"a": 96}


async def test_an_engine_that_comes_back_without_events_is_mirrored(
    stage: Stage, engines: AsyncExitStack
) -> None:
    one, _ = await reborn(stage, engines, events(), ())
    await one.proxy.until(
        "/api/state", lambda state: state["backends"][0]["view"]["source"] == "mirror"
    )
    await one.send(tokens(2, 100))
    assert await one.matched(tokens(2, 100)) == {"a": 96}


async def test_salted_prompts_are_kept_apart(
    stage: Stage, engines: AsyncExitStack
) -> None:
    one = await fleet(stage, a=await engine(engines, *events()))
    await one.until_live("a")
    await one.send(tokens(1, 100), cache_salt="s")
    assert await one.matched(tokens(1, 100)) == {"a": 0}
    assert await one.matched(tokens(1, 100), cache_salt="s") == {"a": 96}


async def test_text_is_mirrored_beside_the_events(
    stage: Stage, engines: AsyncExitStack
) -> None:
    """No event speaks of text, so what was sent is what is known."""
    one = await fleet(stage, a=await engine(engines, *events()))
    await one.until_live("a")
    text = "the quick brown fox " * 60
    assert await one.matched(text) == {"a": 0}
    await one.send(text)
    assert (await one.matched(text))["a"] > 100


@pytest.mark.parametrize("kv_events", ["off", "auto"])
async def test_without_events_the_view_is_a_mirror(
    stage: Stage, engines: AsyncExitStack, kv_events: str
) -> None:
    flags = events() if kv_events == "off" else ()
    run = await engine(engines, *flags)
    backend = {"name": "a", "url": run.url, "kv_events": kv_events}
    proxy = await stage.spawn(backends=[backend])
    await proxy.ready(1)
    one = Fleet(proxy)
    await one.send(tokens(1, 100))
    assert await one.matched(tokens(1, 100)) == {"a": 96}
    assert (await one.view("a"))["source"] == "mirror"
