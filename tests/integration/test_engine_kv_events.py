"""KV events of the embedded engine against what is cached, over real sockets."""

import asyncio
import random
from array import array
from collections.abc import Sequence

from integration import kv_rig
from integration.kv_rig import BLOCK, FULL, Rig, Start, fresh, resident
from unit.kv_subscriber import Message

from warmroute.adapters.kv_control import Snapshot
from warmroute.adapters.kv_requests import BlocksRequest, Request
from warmroute.policies.kv.blocks import hash_tokens, root_hash

loaded = kv_rig.loaded
start = kv_rig.start

Cached = dict[tuple[str, int], tuple[int | None, tuple[int, ...]]]
TIERS = {"GPU": "gpu", "CPU": "host"}


def apply(cached: Cached, messages: Sequence[Message]) -> Cached:
    """Bring an index up to date; a block stored twice or never is an error."""
    for message in messages:
        for event in message.batch[1]:
            if event["type"] == "AllBlocksCleared":
                cached.clear()
                continue
            tier = TIERS[event["medium"]]
            if event["type"] == "BlockRemoved":
                for block in event["block_hashes"]:
                    del cached[tier, block]
                continue
            parent = event["parent_block_hash"]
            for at, block in enumerate(event["block_hashes"]):
                assert (tier, block) not in cached
                tokens = event["token_ids"][at * BLOCK : (at + 1) * BLOCK]
                cached[tier, block] = parent, tuple(tokens)
                parent = block
    return cached


def index_of(snapshot: Snapshot) -> Cached:
    return {
        (one.tier, one.hash): (one.parent, tuple(one.token_ids or ()))
        for one in snapshot.blocks
    }


async def work(rig: Rig, seed: int, rounds: int) -> None:
    """Do random things to the engine: prompts with shared heads, and verbs."""
    rand = random.Random(seed)
    heads = [fresh(rand.randrange(4, 20)) for _ in range(4)]

    async def ask() -> None:
        prompt = rand.choice(heads) + fresh(rand.randrange(1, 25))
        salt = rand.choice([None, None, "pepper"])
        await rig.ask(prompt, max_tokens=rand.randrange(1, 12), cache_salt=salt)

    async def steer() -> None:
        chosen = rand.choice(heads)
        names = BlocksRequest(token_ids=chosen)
        await getattr(rig.kv, rand.choice(["evict", "offload", "restore", "demote"]))(
            names
        )
        if rand.random() < 0.2:
            await rig.kv.flush(Request())

    for _ in range(rounds):
        await asyncio.gather(*[ask() for _ in range(rand.randrange(1, 4))], steer())


class TestEvents:
    async def test_replayed_events_give_exactly_what_is_resident(
        self, start: Start
    ) -> None:
        """After random work in a pool that is too small, tier by tier."""
        rig = await start(host_blocks=6)
        for seed in range(4):
            await work(rig, seed, 6)
            if seed == 1:
                await rig.kv.flush(Request())
            snapshot = await resident(rig)
            messages = rig.messages()
            assert [one.seq for one in messages] == list(range(len(messages)))
            assert snapshot.seq == messages[-1].seq
            assert index_of(snapshot) == apply({}, messages)
        kinds = {e["type"] for m in messages for e in m.batch[1]}
        assert kinds == {"BlockStored", "BlockRemoved", "AllBlocksCleared"}

    async def test_a_snapshot_under_load_joins_the_events_without_a_seam(
        self, start: Start
    ) -> None:
        """A view from a snapshot and the events behind its number is exact."""
        rig = await start(host_blocks=6)
        load = asyncio.create_task(work(rig, 9, 10))
        snapshots = []
        while not load.done():
            snapshots.append(await resident(rig))
        await load
        last = index_of(await resident(rig))
        assert len({one.seq for one in snapshots}) > 5
        for snapshot in snapshots:
            then = 0 if snapshot.seq is None else snapshot.seq + 1
            assert apply(index_of(snapshot), rig.messages(then)) == last

    async def test_hashes_follow_from_the_tokens_in_the_events(
        self, start: Start
    ) -> None:
        """Generated tokens are part of it, and the salt is the root's."""
        rig = await start()
        plain, salted = fresh(), fresh()
        await rig.ask(plain, max_tokens=9, ignore_eos=True)
        await rig.ask(salted, cache_salt="pepper")
        stored = [
            event
            for message in rig.messages()
            for event in message.batch[1]
            if event["type"] == "BlockStored"
        ]
        for salt, prompt in ((None, plain), ("pepper", salted)):
            root = root_hash(rig.name, salt=salt)
            hashes = hash_tokens(array("I", prompt), BLOCK, root)
            [mine] = [one for one in stored if one["block_hashes"][0] == hashes[0]]
            assert (mine["block_hashes"], mine["token_ids"]) == (hashes, prompt[:FULL])
            assert mine["extra_keys"] == [[salt] if salt else None, *[None] * 9]
        grown = [event for event in stored if event["parent_block_hash"] is not None]
        assert len(grown) == 2

    async def test_what_a_verb_changes_is_published_at_once(self, start: Start) -> None:
        """No further step is needed, unlike in vLLM."""
        rig = await start()
        prompt = fresh()
        await rig.ask(prompt)
        before = rig.messages()[-1].seq
        await rig.kv.evict(BlocksRequest(token_ids=prompt, skip_blocks=8))
        [message] = rig.messages(before + 1)
        assert [event["type"] for event in message.batch[1]] == ["BlockRemoved"] * 2
        await rig.kv.flush(Request())
        [message] = rig.messages(before + 2)
        assert message.batch[1] == [{"type": "AllBlocksCleared"}]

    async def test_a_hit_stores_nothing_again(self, start: Start) -> None:
        rig = await start()
        prompt = fresh()
        await rig.ask(prompt)
        before = rig.publisher.last_seq
        assert await rig.ask(prompt) == FULL
        assert rig.publisher.last_seq == before
