"""The plugin inside a real SGLang: every verb, beside what happens without it."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from engines.sglang.engine import PAGE, SGLangOptions
from engines.sglang.plugin_rig import LENGTH, PluginEngine, prompt, with_plugin
from engines.sglang.stream import EventStream

from warmroute.adapters.sglang.client import SGLangAdapter

pytestmark = [
    pytest.mark.engines,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
]
MOST = 30 * PAGE
FILL = 12
"""Prompts that together are longer than the pool of 4,096 tokens."""


class Prompts:
    """Give prompts that nobody has sent before."""

    def __init__(self) -> None:
        self._seed = 0

    def fresh(self) -> list[int]:
        self._seed += 1
        # The seed goes into the head in digits, so that no two share a page.
        digits = [3 + int(one) for one in f"{self._seed:08d}"]
        return digits + prompt(self._seed, LENGTH - len(digits))


PROMPTS = Prompts()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def plugged(
    sglang_options: SGLangOptions,
    sglang_http: aiohttp.ClientSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[PluginEngine]:
    site = tmp_path_factory.mktemp("plugin") / "site"
    one = PluginEngine(with_plugin(sglang_options, site), sglang_http)
    with EventStream(one.events):  # or the publisher has nobody to connect to
        async with one as engine:
            yield engine


@pytest_asyncio.fixture(loop_scope="session")
async def engine(plugged: PluginEngine) -> PluginEngine:
    """Return the engine with an empty cache, nothing retained, and its own policy."""
    await plugged.kv("policy", {"name": "lru"})
    await plugged.flush()
    return plugged


async def test_a_snapshot_lists_what_a_prompt_hits(engine: PluginEngine) -> None:
    asked = PROMPTS.fresh()
    assert (await engine.snapshot()).blocks == []
    await engine.generate(asked)
    snapshot = await engine.snapshot()
    told = [token for block in snapshot.blocks for token in block.token_ids or ()]
    assert told == asked[: len(told)]
    assert len(snapshot.blocks) == LENGTH // PAGE
    assert [one.parent for one in snapshot.blocks] == [
        None,
        *(one.hash for one in snapshot.blocks[:-1]),
    ]
    assert {(one.refs, one.tier) for one in snapshot.blocks} == {(0, "gpu")}


async def test_a_snapshot_equals_the_events_up_to_its_barrier(
    engine: PluginEngine,
) -> None:
    """Splits, salts, an eviction and more than the pool holds are in it."""
    shared = PROMPTS.fresh()
    for number in range(FILL):
        await engine.generate(shared[: 8 * PAGE] + PROMPTS.fresh())
        await engine.generate(PROMPTS.fresh(), cache_salt=f"salt {number}")
    await engine.kv("evict", {"token_ids": shared[: 4 * PAGE]})
    snapshot = await engine.snapshot()
    assert snapshot.seq is not None
    events = EventStream.replayed(engine.replay, snapshot.seq)
    assert {one.hash for one in snapshot.blocks} == events.held["gpu"]
    assert len(snapshot.blocks) > 100


async def test_evicting_a_tail_leaves_exactly_the_head(engine: PluginEngine) -> None:
    asked = PROMPTS.fresh()
    await engine.generate(asked)
    answer = await engine.kv("evict", {"token_ids": asked, "skip_blocks": 10})
    assert (len(answer["evicted"]), answer["kept"]) == (20, [])
    assert await engine.cached(asked) == 10 * PAGE


async def test_a_block_that_is_followed_is_kept(engine: PluginEngine) -> None:
    """A hole would strand all that is behind it."""
    asked = PROMPTS.fresh()
    await engine.generate(asked)
    hashes = [one.hash for one in (await engine.snapshot()).blocks]
    answer = await engine.kv("evict", {"hashes": [hashes[4], 7]})
    assert answer["evicted"] == []
    reasons = {one["hash"]: one["reason"] for one in answer["kept"]}
    assert reasons == {hashes[4]: "followed", 7: "absent"}
    assert await engine.cached(asked) == MOST


async def test_a_running_request_keeps_its_blocks(engine: PluginEngine) -> None:
    asked = PROMPTS.fresh()
    await engine.generate(asked)
    running = asyncio.create_task(engine.generate(asked, max_tokens=800))
    while not any(one.refs for one in (await engine.snapshot()).blocks):
        assert not running.done()
    answer = await engine.kv("evict", {"token_ids": asked})
    flushed = await engine.kv("flush", {})
    assert not running.done(), "the request ended before it was looked at"
    assert {one["reason"] for one in answer["kept"]} == {"referenced"}
    assert flushed["referenced"] >= 30
    assert (await running)["completion_tokens"] == 800


async def test_what_is_retained_survives_and_what_is_not_does_not(
    engine: PluginEngine,
) -> None:
    kept, control = PROMPTS.fresh(), PROMPTS.fresh()
    await engine.fill([kept, control])
    answer = await engine.kv("retain", {"token_ids": kept, "ttl_s": 600})
    assert (answer["retained"], answer["named"], answer["total"]) == (30, 30, 30)
    await engine.fill([PROMPTS.fresh() for _ in range(FILL)])
    assert await engine.cached(control) == 0
    assert await engine.cached(kept) == MOST
    assert (await engine.kv("release", {"token_ids": kept}))["changed"] == 30
    await engine.fill([PROMPTS.fresh() for _ in range(FILL)])
    assert await engine.cached(kept) == 0


async def test_a_part_of_what_is_retained_can_be_let_go(engine: PluginEngine) -> None:
    asked = PROMPTS.fresh()
    await engine.generate(asked)
    await engine.kv("retain", {"token_ids": asked, "ttl_s": 600})
    tail = {"token_ids": asked, "skip_blocks": 12}
    assert (await engine.kv("release", tail))["changed"] == 18
    await engine.fill([PROMPTS.fresh() for _ in range(FILL)])
    assert await engine.cached(asked) == 12 * PAGE
    assert (await engine.kv("release", {"token_ids": asked}))["changed"] == 12


async def test_a_retention_ends_by_itself(engine: PluginEngine) -> None:
    asked = PROMPTS.fresh()
    await engine.generate(asked)
    await engine.kv("retain", {"token_ids": asked, "ttl_s": 0.5})
    assert {one.refs for one in (await engine.snapshot()).blocks} == {1}
    async with asyncio.timeout(20):
        while {one.refs for one in (await engine.snapshot()).blocks} != {0}:
            pass


async def test_never_more_than_the_cap_is_retained(engine: PluginEngine) -> None:
    """And the longest request still gets through."""
    asked = [PROMPTS.fresh() for _ in range(6)]
    totals = []
    for one in asked:
        await engine.generate(one)
        answer = await engine.kv("retain", {"token_ids": one, "ttl_s": 600})
        totals.append(answer["total"])
    assert totals == [30, 60, 90, 120, answer["cap"], answer["cap"]]
    assert answer["cap"] == 127
    told = await engine.generate(prompt(1, 2000), max_tokens=40)
    assert told["completion_tokens"] == 40
    for one in asked:
        await engine.kv("release", {"token_ids": one})
    assert {one.refs for one in (await engine.snapshot()).blocks} == {0}


async def test_what_is_demoted_goes_before_what_is_older(engine: PluginEngine) -> None:
    older, younger = PROMPTS.fresh(), PROMPTS.fresh()
    await engine.fill([older, younger])
    await engine.fill([PROMPTS.fresh() for _ in range(5)])
    assert (await engine.kv("demote", {"token_ids": younger}))["changed"] == 30
    await engine.fill([PROMPTS.fresh() for _ in range(2)])
    assert (len(await _hashes(engine, older)), await _hashes(engine, younger)) == (
        30,
        [],
    )


async def test_without_demotion_the_older_goes_first(engine: PluginEngine) -> None:
    """The control of the test above."""
    older, younger = PROMPTS.fresh(), PROMPTS.fresh()
    await engine.fill([older, younger])
    await engine.fill([PROMPTS.fresh() for _ in range(7)])
    assert (await _hashes(engine, older), len(await _hashes(engine, younger))) == (
        [],
        30,
    )


@pytest.mark.parametrize(("policy", "cached"), [("lru", 0), ("lfu", MOST)])
async def test_the_policy_in_force_decides(
    engine: PluginEngine, policy: str, cached: int
) -> None:
    """What is used often survives one-shot prompts under lfu and not under lru."""
    assert (await engine.kv("policy", {"name": policy}))["name"] == policy
    often = PROMPTS.fresh()
    await engine.fill([often] * 4)
    await engine.fill([PROMPTS.fresh() for _ in range(FILL)])
    assert await engine.cached(often) == cached


async def test_a_flush_empties_the_cache_and_is_announced(engine: PluginEngine) -> None:
    asked = PROMPTS.fresh()
    await engine.generate(asked)
    answer = await engine.kv("flush", {})
    assert answer == {"flushed": True, "dropped": 30, "referenced": 0}
    seq = (await engine.snapshot()).seq
    assert seq is not None
    assert EventStream.replayed(engine.replay, seq).held["gpu"] == set()
    assert await engine.cached(asked) == 0


async def test_chats_and_texts_name_the_blocks_that_they_fill(
    engine: PluginEngine,
) -> None:
    messages = [{"role": "user", "content": "What is kept? " * 12}]
    chat = {"model": "tiny", "messages": messages, "max_tokens": 1}
    text = {"model": "tiny", "prompt": "Whatever is named. " * 12, "max_tokens": 1}
    for path, body, named in (
        ("/v1/chat/completions", chat, {"messages": messages}),
        ("/v1/completions", text, {"prompt": text["prompt"]}),
    ):
        usage = (await engine.post(path, body))["usage"]
        answer = await engine.kv("evict", named)
        assert len(answer["evicted"]) == usage["prompt_tokens"] // PAGE
        assert answer["kept"] == []


async def test_a_salt_is_part_of_the_name(engine: PluginEngine) -> None:
    asked = PROMPTS.fresh()
    await engine.generate(asked, cache_salt="s")
    plain = await engine.kv("evict", {"token_ids": asked})
    assert {one["reason"] for one in plain["kept"]} == {"absent"}
    salted = await engine.kv("evict", {"token_ids": asked, "cache_salt": "s"})
    assert len(salted["evicted"]) == 30


@pytest.mark.parametrize(
    ("verb", "body", "token", "status"),
    [
        ("evict", {"hashes": [1]}, "wrong", 401),
        ("snapshot", {}, None, 401),
        ("evict", {"hashes": "all"}, "right", 400),
        ("evict", b"{", "right", 400),
        ("evict", {"hashes": list(range(70_000))}, "right", 400),
        ("retain", {"hashes": [1], "ttl_s": -1}, "right", 400),
        ("policy", {"name": "tlru"}, "right", 400),
        ("policy", {"name": "slru", "options": {"no": 1}}, "right", 400),
        ("budget", {}, "right", 501),
        ("restore", {"hashes": [1]}, "right", 501),
        ("offload", {"hashes": [1]}, "right", 501),
        ("expire", {}, "right", 404),
    ],
)
async def test_what_is_wrong_is_refused_and_the_engine_runs_on(
    engine: PluginEngine, verb: str, body: Any, token: str | None, status: int
) -> None:
    given = {"right": engine.token}.get(token or "", token)
    answered, answer = await engine.ask(verb, body, token=given)
    assert answered == status, answer
    assert answer["error"]["message"]
    assert await engine.cached(prompt(5)) in (0, MOST)


async def test_calls_at_once_leave_nothing_behind(engine: PluginEngine) -> None:
    """Verbs and requests on the same blocks, and the engine's own check of leaks."""
    asked = PROMPTS.fresh()

    async def one(number: int) -> None:
        await engine.generate(asked, max_tokens=8)
        await engine.kv("retain", {"token_ids": asked, "ttl_s": 60})
        await engine.kv("evict", {"token_ids": asked, "skip_blocks": number})
        await engine.kv("demote", {"token_ids": asked})
        await engine.kv("release", {"token_ids": asked})

    await asyncio.gather(*(one(number) for number in range(8)))
    assert (await engine.kv("flush", {}))["flushed"]
    facts = await SGLangAdapter().facts(engine.endpoint)
    assert (facts.kv_usage, facts.running) == (0.0, 0)
    assert await engine.cached(asked) == 0


async def test_the_socket_is_private(engine: PluginEngine) -> None:
    path = engine.socket
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.stat().st_uid == os.getuid()


async def _hashes(engine: PluginEngine, asked: list[int]) -> list[int]:
    """Return the names of a prompt's blocks that are cached."""
    snapshot = await engine.snapshot()
    by_tokens = {
        (one.parent, tuple(one.token_ids or ())): one.hash for one in snapshot.blocks
    }
    names: list[int] = []
    for at in range(0, MOST, PAGE):
        parent = names[-1] if names else None
        name = by_tokens.get((parent, tuple(asked[at : at + PAGE])))
        if name is None:
            break
        names.append(name)
    return names
