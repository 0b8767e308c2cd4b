"""KV control of a real vLLM by the plugin: each verb, and what it is measured by."""

import asyncio
import json
import time
from collections.abc import Iterable

import aiohttp
import pytest
from engines.vllm_plugin_rig import (
    BLOCK,
    MOST,
    NUM_BLOCKS,
    TOKEN,
    PluginEngine,
    blocks,
    fill,
    prompt,
)
from engines.vllm_plugin_shared import EventView, Plugged

from warmroute.adapters.endpoint import Endpoint
from warmroute.adapters.kv_control import VERBS
from warmroute.adapters.vllm.client import VLLMAdapter

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]


@pytest.fixture
def engine(plugged: Plugged) -> PluginEngine:
    return plugged.engine


@pytest.fixture
def view(plugged: Plugged) -> EventView:
    return plugged.view


async def test_every_verb_is_probed(engine: PluginEngine) -> None:
    verbs = (await engine.kv("capabilities"))["verbs"]
    assert set(verbs) == set(VERBS)
    works = {verb for verb, told in verbs.items() if told is True}
    assert works >= {*VERBS} - {"offload", "restore"}
    assert all(
        str(told).startswith("unsupported: ")
        for verb, told in verbs.items()
        if verb not in works
    )


async def test_snapshot_is_what_the_events_say(
    engine: PluginEngine, view: EventView
) -> None:
    """At its own sequence number, through evictions, copies and salts."""
    await fill(engine, "view", 12)
    await engine.cached(prompt("view-11"))
    await engine.complete(prompt("salted"), cache_salt="pepper")
    snapshot = await engine.kv("snapshot", {"token_ids": True})
    await view.catch_up(snapshot["seq"])
    listed = {one["hash"]: one for one in snapshot["blocks"]}
    assert len(listed) == len(snapshot["blocks"]) > 100
    assert set(listed) == view.cached
    seen: set[int] = set()
    for key, one in listed.items():
        event = view.contents[key]
        at = [int(other) for other in event.block_hashes].index(key)
        front = event.block_hashes[at - 1] if at else event.parent_block_hash
        assert one["parent"] == front
        assert front is None or front in seen or front not in listed
        assert one["token_ids"] == event.token_ids[at * BLOCK : (at + 1) * BLOCK]
        extra = (event.extra_keys or [None])[at] if event.extra_keys else None
        assert one.get("extra_keys") == (None if extra is None else list(extra))
        seen.add(key)
    assert sum(one.get("extra_keys") == ["pepper"] for one in listed.values()) == 1
    # A flush after it is in the events, and not in the snapshot before.
    flushed = await engine.kv("flush")
    after = await engine.kv("snapshot")
    await view.catch_up(after["seq"])
    assert (flushed["flushed"], after["blocks"], view.cached) == (True, [], set())


async def test_evict_leaves_exactly_the_head(
    engine: PluginEngine, view: EventView
) -> None:
    tokens = prompt("evict")
    await engine.complete(tokens)
    assert await engine.cached(tokens) == MOST
    evicted = await engine.kv("evict", blocks(tokens, skip_blocks=8))
    assert (len(evicted["evicted"]), evicted["kept"]) == (7, [])
    snapshot = await engine.kv("snapshot")
    await view.catch_up(snapshot["seq"])  # told at once, no request came in between
    assert not set(evicted["evicted"]) & view.cached
    assert await engine.cached(tokens) == 8 * BLOCK


async def test_evict_makes_no_hole(engine: PluginEngine) -> None:
    tokens = prompt("hole")
    await engine.complete(tokens)
    head = (await engine.kv("evict", blocks(tokens[: 2 * BLOCK])))["kept"]
    assert [one["reason"] for one in head] == ["followed", "followed"]
    assert await engine.cached(tokens) == MOST


async def test_salt_is_part_of_the_name(engine: PluginEngine) -> None:
    tokens = prompt("salt")
    await engine.complete(tokens, cache_salt="mine")
    assert not (await engine.kv("evict", blocks(tokens)))["evicted"]
    named = await engine.kv("evict", blocks(tokens, cache_salt="mine"))
    assert len(named["evicted"]) == 15


async def test_text_and_chats_name_what_requests_cache(engine: PluginEngine) -> None:
    text = "All happy families are alike; every unhappy family is so in its own way. "
    body = {"model": engine.base.model_name, "max_tokens": 1}
    asks = [
        ("completions", {"prompt": text * 4}),
        ("chat/completions", {"messages": [{"role": "user", "content": text * 4}]}),
    ]
    for path, ask in asks:
        url = f"{engine.url}/v1/{path}"
        async with engine.http.post(url, json={**body, **ask}) as response:
            usage = (await response.json())["usage"]
        evicted = (await engine.kv("evict", ask))["evicted"]
        assert len(evicted) == usage["prompt_tokens"] // BLOCK > 4


async def test_retained_survives_a_full_pool(engine: PluginEngine) -> None:
    kept, control = prompt("kept"), prompt("control")
    await engine.complete(kept)
    await engine.complete(control)
    told = await engine.kv("retain", blocks(kept, ttl_s=600))
    assert (told["retained"], told["named"]) == (15, 15)
    await fill(engine, "retain")
    assert (await engine.cached(kept), await engine.cached(control)) == (MOST, 0)
    assert not await engine.is_whole()  # vLLM counts what is held as used
    assert (await engine.kv("release", blocks(kept)))["changed"] == 15
    await fill(engine, "release")
    assert await engine.cached(kept) == 0
    assert await engine.is_whole()


async def test_retained_is_let_go_when_it_is_due(engine: PluginEngine) -> None:
    """By itself: between the two no verb is called."""
    tokens = prompt("due")
    await engine.complete(tokens)
    began = time.monotonic()
    assert (await engine.kv("retain", blocks(tokens, ttl_s=0.5)))["retained"] == 15
    at = 0
    async with asyncio.timeout(60):
        while not await engine.is_whole():  # vLLM counts what is held as used
            await engine.complete(prompt(f"due-{(at := at + 1)}"))
    assert time.monotonic() > began + 0.5
    assert await engine.cached(tokens) == 0


async def test_retain_stops_at_the_cap(engine: PluginEngine) -> None:
    """Half of the pool, and never so much that the longest request has no room."""
    cap = min(
        (NUM_BLOCKS - 1) // 2, NUM_BLOCKS - 1 - engine.options.max_model_len // 32
    )
    chains = [prompt(f"cap-{at}") for at in range(8)]
    told = {}
    for tokens in chains:
        await engine.complete(tokens)
        told = await engine.kv("retain", blocks(tokens, ttl_s=60))
        assert told["cap"] == cap
    assert (told["total"], told["retained"]) == (cap, 0)
    longest = prompt("longest", engine.options.max_model_len - 2)
    assert (await engine.complete(longest))["usage"]["completion_tokens"] == 1
    for tokens in chains:
        await engine.kv("release", blocks(tokens))
    assert await engine.is_whole()


@pytest.mark.parametrize("victim", ["newer", "none"])
async def test_demoted_goes_first(engine: PluginEngine, victim: str) -> None:
    assert await engine.is_whole()
    older, newer = prompt("older"), prompt("newer")
    await engine.complete(older)
    await engine.complete(newer)
    await fill(engine, "before", 8)
    if victim == "newer":
        assert (await engine.kv("demote", blocks(newer)))["changed"] == 15
    await engine.complete(prompt("one more"))
    survivor, lost = (older, newer) if victim == "newer" else (newer, older)
    assert await engine.cached(survivor) == MOST
    assert await engine.cached(lost) < MOST


@pytest.mark.parametrize(
    ("policy", "cached"), [("lru", 0), ("lfu", MOST), ("lrfu", MOST)]
)
async def test_policies_keep_what_lru_loses(
    engine: PluginEngine, policy: str, cached: int
) -> None:
    assert await engine.is_whole()
    told = await engine.kv("policy", {"name": policy})
    assert (
        told["name"] == (await engine.ask("policy", method="GET"))[1]["name"] == policy
    )
    hot = prompt("hot")
    for _ in range(4):
        await engine.complete(hot)
    await fill(engine, "cold")
    assert await engine.cached(hot) == cached
    await engine.kv("policy", {"name": "lru"})
    assert await engine.cached(hot) >= cached
    assert await engine.is_whole()


async def test_batches_aborts_and_preemption_leave_no_block_behind(
    engine: PluginEngine, view: EventView
) -> None:
    """Eight at a time with a common prefix, more than fits, verbs all the while."""
    assert await engine.is_whole()
    shared = prompt("shared", 5 * BLOCK)
    prompts = [shared + prompt(f"own-{at}", 5 * BLOCK) for at in range(8)]
    preempted = await engine.metric("vllm:num_preemptions_total")
    batch = [asyncio.create_task(engine.complete(one, 900)) for one in prompts]
    policies = ["lfu", "arc", "lru", "s3fifo"]
    rounds = 0
    while not all(one.done() for one in batch):
        await engine.kv("policy", {"name": policies[rounds % 4]})
        await engine.kv("retain", blocks(shared, ttl_s=30))
        await engine.kv("demote", blocks(prompts[rounds % 8]))
        await engine.kv("evict", blocks(prompts[rounds % 8]))
        listed = await engine.kv("snapshot")
        assert len({one["hash"] for one in listed["blocks"]}) == len(listed["blocks"])
        if rounds % 3 == 0:
            await engine.kv("release", blocks(shared))
            await engine.kv("flush")
        rounds += 1
    done = await asyncio.gather(*batch)
    assert [one["usage"]["completion_tokens"] for one in done] == [900] * 8
    assert await engine.metric("vllm:num_preemptions_total") > preempted
    assert rounds
    await abort_some(engine, prompts)
    await engine.kv("release", blocks(shared))
    await engine.kv("policy", {"name": "lru"})
    snapshot = await engine.kv("snapshot")
    await view.catch_up(snapshot["seq"])
    assert {one["hash"] for one in snapshot["blocks"]} == view.cached
    assert not any(one["refs"] for one in snapshot["blocks"])
    assert await engine.is_whole()


async def abort_some(engine: PluginEngine, prompts: Iterable[list[int]]) -> None:
    """Hang up on eight requests while they are decoded."""
    tasks = [asyncio.create_task(engine.complete(one, 900)) for one in prompts]
    while not await engine.metric("vllm:num_requests_running"):
        await engine.kv("snapshot")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    async with asyncio.timeout(20):
        while await engine.metric("vllm:num_requests_running"):
            await engine.complete(prompt("pulse", 40))


BAD_BODIES = [
    (b"{", 400),
    (b"[]", 400),
    (b"{}", 400),
    (b'{"hashes": [1], "prompt": "a"}', 400),
    (b'{"hashes": [1e999]}', 400),
    (b'{"token_ids": [-1]}', 400),
    (b'{"token_ids": [1, 2, 3]}', 400),
    (b"\xff\xfe", 400),
    (json.dumps({"hashes": list(range(65_537))}).encode(), 400),
    (json.dumps({"hashes": [2**63 + n for n in range(1_000_000)]}).encode(), 413),
]


@pytest.mark.parametrize("at", range(len(BAD_BODIES)))
async def test_bad_bodies_are_refused(engine: PluginEngine, at: int) -> None:
    body, status = BAD_BODIES[at]
    found, answer = await engine.ask("evict", body)
    assert (found, bool(answer["error"]["message"])) == (status, True)
    await engine.complete(prompt("unharmed", 40))


async def test_as_many_hashes_as_allowed_are_looked_at(engine: PluginEngine) -> None:
    named = {"hashes": [2**63 + number for number in range(65_536)]}
    kept = (await engine.kv("evict", named))["kept"]
    assert (len(kept), {one["reason"] for one in kept}) == (65_536, {"absent"})


async def test_strangers_are_refused(engine: PluginEngine) -> None:
    for token in (None, "", "wrong", TOKEN[:-1], TOKEN + "x"):
        for verb in ("capabilities", "flush", "snapshot"):
            status, answer = await engine.ask(verb, token=token)
            assert (status, answer["error"]["code"]) == (401, "engine_token_wrong")
    status, _ = await engine.ask("flush", kind="text/plain")
    assert status == 415
    status, _ = await engine.ask("destroy")
    assert status == 404
    status, _ = await engine.ask("policy", {"name": "lfu", "options": {"x": 1}})
    assert status == 400
    status, answer = await engine.ask("policy", {"name": "lfru"})
    assert (status, "did you mean" in answer["error"]["message"]) == (400, True)


async def test_conflicting_calls_at_once_leave_the_cache_whole(
    engine: PluginEngine,
) -> None:
    tokens = prompt("conflict")
    for _ in range(3):
        await engine.complete(tokens)
        verbs: list[tuple[str, dict[str, object]]] = [
            ("evict", {}),
            ("retain", {"ttl_s": 60}),
            ("flush", {}),
            ("demote", {}),
            ("release", {}),
        ] * 3
        answers = await asyncio.gather(
            *(
                engine.ask(verb, {} if verb == "flush" else blocks(tokens, **more))
                for verb, more in verbs
            )
        )
        assert {status for status, _ in answers} == {200}
        await engine.kv("release", blocks(tokens))
        assert await engine.is_whole()


async def test_the_proxy_reads_the_snapshot(
    engine: PluginEngine, http: aiohttp.ClientSession
) -> None:
    """With the backend's token; without it the door offers no list."""
    await engine.complete(prompt("proxy"))
    adapter = VLLMAdapter()
    keyed = Endpoint(http, engine.url, {}, 5.0, door_key=f"Bearer {TOKEN}")
    snapshot = await adapter.snapshot(keyed)
    assert snapshot is not None
    assert all(len(one.token_ids or ()) == BLOCK for one in snapshot.blocks)
    assert await adapter.snapshot(Endpoint(http, engine.url, {}, 5.0)) is None


async def test_an_unknown_release_runs_untouched(plugged: Plugged) -> None:
    stranger = plugged.stranger
    tokens = prompt("stranger")
    assert (await stranger.cached(tokens), await stranger.cached(tokens)) == (0, MOST)
    verbs = (await stranger.kv("capabilities"))["verbs"]
    assert set(verbs) == set(VERBS)
    for verb, told in verbs.items():
        assert told.startswith("unsupported: vLLM 0.99.0+cpu is not known"), verb
    status, answer = await stranger.ask("flush")
    assert (status, answer["error"]["code"]) == (501, "kv_verb_unsupported")
    assert await stranger.cached(tokens) == MOST
