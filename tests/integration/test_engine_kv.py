"""KV control of the embedded engine: the tiny model, real sockets."""

import asyncio
import random
from typing import Any

import pytest
from integration import kv_rig
from integration.kv_rig import BLOCK, BLOCKS, FULL, Start, fresh, resident

from warmroute.adapters.embedded.client import EmbeddedAdapter
from warmroute.adapters.embedded.engine.state import EngineState
from warmroute.adapters.kv_control import Kept
from warmroute.adapters.kv_requests import (
    BlocksRequest,
    BudgetRequest,
    PolicyRequest,
    Request,
    RestoreRequest,
    RetainRequest,
)
from warmroute.adapters.registry import detect
from warmroute.policies.errors import ClientError
from warmroute.policies.eviction.lru import Lru

loaded = kv_rig.loaded
start = kv_rig.start


class TestEvict:
    async def test_a_tail_goes_and_exactly_the_head_stays(self, start: Start) -> None:
        rig = await start()
        prompt = fresh()
        assert await rig.ask(prompt) == 0
        done = await rig.kv.evict(BlocksRequest(token_ids=prompt, skip_blocks=4))
        assert (len(done.evicted), done.kept) == (6, [])
        assert await rig.ask(prompt) == 4 * BLOCK

    async def test_a_hole_is_refused_because_it_strands_what_is_behind(
        self, start: Start
    ) -> None:
        rig = await start()
        prompt = fresh()
        await rig.ask(prompt)
        middle = [one.hash for one in (await resident(rig)).blocks][2:4]
        done = await rig.kv.evict(BlocksRequest(hashes=middle))
        assert done.evicted == []
        assert done.kept == [Kept(hash=one, reason="followed") for one in middle]
        assert await rig.ask(prompt) == FULL

    async def test_what_is_not_there_is_named_absent(self, start: Start) -> None:
        rig = await start()
        done = await rig.kv.evict(BlocksRequest(hashes=[5]))
        assert done.kept == [Kept(hash=5, reason="absent")]

    async def test_copies_on_the_host_go_too(self, start: Start) -> None:
        rig = await start(host_blocks=16)
        prompt = fresh()
        await rig.ask(prompt)
        names = BlocksRequest(token_ids=prompt)
        assert (await rig.kv.offload(names)).changed == 10
        assert len((await rig.kv.evict(names)).evicted) == 10
        assert await rig.ask(prompt) == 0

    async def test_blocks_of_a_running_request_stay(self, start: Start) -> None:
        rig = await start(num_blocks=1200)
        prompt = fresh()
        async with rig.running(prompt):
            done = await rig.kv.evict(BlocksRequest(token_ids=prompt))
            assert done.evicted == []
            assert {one.reason for one in done.kept} == {"referenced"}
            flushed = await rig.kv.flush(Request())
            assert not flushed.flushed
            assert flushed.referenced >= 10
        assert await rig.ask(prompt) == FULL


class TestRetain:
    async def test_a_retained_prefix_survives_what_evicts_another(
        self, start: Start
    ) -> None:
        rig = await start()
        kept, lost = fresh(), fresh()
        for prompt in (kept, lost):
            await rig.ask(prompt)
        done = await rig.kv.retain(RetainRequest(token_ids=kept, ttl_s=60))
        assert (done.retained, done.named, done.total) == (10, 10, 10)
        await rig.fill()
        assert [await rig.ask(kept), await rig.ask(lost)] == [FULL, 0]

    async def test_a_retention_ends_by_itself(self, start: Start) -> None:
        rig = await start()
        prompt = fresh()
        await rig.ask(prompt)
        await rig.kv.retain(RetainRequest(token_ids=prompt, ttl_s=60))
        assert {one.refs for one in (await resident(rig)).blocks} == {1}
        rig.clock.now += 61
        assert {one.refs for one in (await resident(rig)).blocks} == {0}
        await rig.fill()
        assert await rig.ask(prompt) == 0

    async def test_a_release_ends_it_at_once(self, start: Start) -> None:
        rig = await start()
        prompt = fresh()
        await rig.ask(prompt)
        await rig.kv.retain(RetainRequest(token_ids=prompt, ttl_s=60))
        done = await rig.kv.release(BlocksRequest(token_ids=prompt))
        assert (done.changed, done.named) == (10, 10)
        await rig.fill()
        assert await rig.ask(prompt) == 0

    async def test_only_a_share_of_the_pool_may_be_retained(self, start: Start) -> None:
        """The rest of a chain is not; what is retained is its head."""
        rig = await start()
        prompts = [fresh(), fresh()]
        for prompt in prompts:
            await rig.ask(prompt)
        done = [
            await rig.kv.retain(RetainRequest(token_ids=prompt, ttl_s=60))
            for prompt in prompts
        ]
        assert {one.cap for one in done} == {BLOCKS // 2}
        assert [one.retained for one in done] == [10, BLOCKS // 2 - 10]
        await rig.fill()
        assert await rig.ask(prompts[1]) == (BLOCKS // 2 - 10) * BLOCK

    async def test_a_flush_keeps_what_is_retained(self, start: Start) -> None:
        rig = await start()
        kept, lost = fresh(), fresh()
        for prompt in (kept, lost):
            await rig.ask(prompt)
        await rig.kv.retain(RetainRequest(token_ids=kept, ttl_s=60))
        done = await rig.kv.flush(Request())
        assert (done.flushed, done.dropped, done.referenced) == (False, 10, 10)
        assert [await rig.ask(kept), await rig.ask(lost)] == [FULL, 0]


class TestOrder:
    async def test_a_demoted_prompt_goes_before_an_older_one(
        self, start: Start
    ) -> None:
        for demote in (False, True):
            rig = await start()
            old, new = fresh(), fresh()
            await rig.ask(old)
            await rig.ask(new)
            if demote:
                done = await rig.kv.demote(BlocksRequest(token_ids=new))
                assert done.changed == 10
            await rig.ask(fresh(80))  # 20 of 32 blocks: 8 must go
            held = [await rig.held(old), await rig.held(new)]
            assert held == ([10, 2] if demote else [2, 10])
            await rig.engine.close()
            rig.publisher.close()

    async def test_another_policy_keeps_what_lru_lost(self, start: Start) -> None:
        cached = {}
        for name in ("lru", "lfu"):
            rig = await start()
            state = await rig.kv.policy(PolicyRequest(name=name))
            assert state.name == name
            assert name in state.available
            used = fresh()
            for _ in range(4):
                await rig.ask(used)
            await rig.fill()
            cached[name] = await rig.ask(used)
            await rig.engine.close()
            rig.publisher.close()
        assert cached == {"lru": 0, "lfu": FULL}

    async def test_a_policy_changes_while_blocks_are_resident(
        self, start: Start
    ) -> None:
        rig = await start()
        prompt = fresh()
        await rig.ask(prompt)
        assert (await rig.kv.policy(PolicyRequest())).name == "lru"
        await rig.kv.policy(PolicyRequest(name="fifo"))
        assert (await rig.kv.policy(PolicyRequest())).name == "fifo"
        assert await rig.ask(prompt) == FULL
        await rig.engine.call(lambda state: state.pool.check_integrity())

    async def test_an_unknown_policy_is_refused_and_the_old_one_stays(
        self, start: Start
    ) -> None:
        rig = await start()
        for request in (
            PolicyRequest(name="lruu"),
            PolicyRequest(name="lru", options={"speed": 3}),
        ):
            with pytest.raises(ClientError) as caught:
                await rig.kv.policy(request)
            assert (caught.value.status, caught.value.code) == (
                400,
                "kv_policy_invalid",
            )
        assert "lru" in caught.value.message
        assert (await rig.kv.policy(PolicyRequest())).name == "lru"


class TestHost:
    async def test_an_offloaded_prompt_comes_back_by_itself(self, start: Start) -> None:
        """The control without offload is recomputed."""
        rig = await start(host_blocks=16)
        moved, control = fresh(), fresh()
        for prompt in (moved, control):
            await rig.ask(prompt)
        done = await rig.kv.offload(BlocksRequest(token_ids=moved))
        assert (done.changed, done.named) == (10, 10)
        tiers = [one.tier for one in (await resident(rig)).blocks]
        assert (tiers.count("gpu"), tiers.count("host")) == (10, 10)
        await rig.fill()
        assert rig.engine.stats().host_hits == 0
        assert [await rig.ask(moved), await rig.ask(control)] == [FULL, 0]
        assert rig.engine.stats().host_hits == FULL

    async def test_a_restored_prompt_is_on_pages_before_it_is_asked_for(
        self, start: Start
    ) -> None:
        rig = await start(host_blocks=16)
        prompt = fresh()
        await rig.ask(prompt)
        names = RestoreRequest(token_ids=prompt)
        await rig.kv.offload(names)
        assert (await rig.kv.restore(names)).changed == 10
        assert await rig.ask(prompt) == FULL
        assert rig.engine.stats().host_hits == 0

    async def test_moves_in_slices_leave_no_block_behind(self, start: Start) -> None:
        """More blocks than one slice has, named in any order."""
        rig = await start(num_blocks=128, host_blocks=128)
        prompt = fresh(401)
        await rig.ask(prompt)
        hashes = [one.hash for one in (await resident(rig)).blocks]
        random.Random(1).shuffle(hashes)
        names = RestoreRequest(hashes=hashes)
        assert (await rig.kv.offload(names)).changed == 100
        assert {one.tier for one in (await resident(rig)).blocks} == {"host"}
        assert (await rig.kv.restore(names)).changed == 100
        assert await rig.ask(prompt) == 400

    async def test_what_the_host_has_no_room_for_stays_where_it_is(
        self, start: Start
    ) -> None:
        """More slices than the tier has room for: no block is lost, nor counted."""
        rig = await start(num_blocks=128, host_blocks=40)
        prompt = fresh(401)
        await rig.ask(prompt)
        names = RestoreRequest(token_ids=prompt)
        assert (await rig.kv.offload(names)).changed == 40
        tiers = [one.tier for one in (await resident(rig)).blocks]
        assert (tiers.count("gpu"), tiers.count("host")) == (60, 40)
        assert (await rig.kv.restore(names)).changed == 40
        assert await rig.ask(prompt) == 400

    async def test_what_a_running_request_evicted_is_gone_and_says_so(
        self, start: Start
    ) -> None:
        """With a host tier, too: it holds whole blocks of the cache."""
        rig = await start(host_blocks=16)
        told = (await rig.kv.capabilities(Request())).running["restore"]
        assert "infinigen" in str(told)
        with pytest.raises(ClientError, match="infinigen") as caught:
            await rig.kv.restore(RestoreRequest(request_id="cmpl-1"))
        assert caught.value.status == 501

    async def test_without_a_host_tier_the_verbs_say_so(self, start: Start) -> None:
        rig = await start()
        verbs = (await rig.kv.capabilities(Request())).verbs
        assert [name for name, can in verbs.items() if can is not True] == [
            "offload",
            "restore",
        ]
        with pytest.raises(ClientError, match="--host-blocks") as caught:
            await rig.kv.offload(BlocksRequest(hashes=[1]))
        assert caught.value.status == 501


class TestNames:
    async def test_a_prompt_a_chat_and_token_ids_name_what_requests_store(
        self, start: Start
    ) -> None:
        rig = await start(num_blocks=128)
        text = "The capital of France is Paris, and that of Italy is Rome."
        chat = [{"role": "user", "content": "Which is the capital of Spain?"}]
        await rig.ask(text)
        body = {"messages": chat, "max_tokens": 1, "temperature": 0}
        url = f"{rig.url}/v1/chat/completions"
        async with rig.session.post(url, json=body) as response:
            usage = (await response.json())["usage"]
        for names in (BlocksRequest(prompt=text), BlocksRequest(messages=chat)):
            done = await rig.kv.evict(names)
            assert len(done.evicted) > 5
            assert done.kept == []
        assert (await resident(rig)).blocks == []
        assert usage["prompt_tokens"] // BLOCK == len(done.evicted)

    async def test_a_salt_names_other_blocks(self, start: Start) -> None:
        rig = await start()
        prompt = fresh()
        await rig.ask(prompt, cache_salt="pepper")
        done = await rig.kv.evict(BlocksRequest(token_ids=prompt))
        assert {one.reason for one in done.kept} == {"absent"}
        salted = BlocksRequest(token_ids=prompt, cache_salt="pepper")
        assert len((await rig.kv.evict(salted)).evicted) == 10

    async def test_less_than_a_block_names_nothing(self, start: Start) -> None:
        rig = await start()
        for names in (
            BlocksRequest(token_ids=[1, 2, 3]),
            BlocksRequest(token_ids=fresh(), skip_blocks=10),
        ):
            with pytest.raises(ClientError) as caught:
                await rig.kv.evict(names)
            assert caught.value.code == "kv_no_blocks"

    async def test_tokens_that_are_too_many_blocks_are_refused(
        self, start: Start
    ) -> None:
        rig = await start()
        with pytest.raises(ClientError, match="allowed: 65536 blocks"):
            await rig.kv.evict(BlocksRequest(token_ids=[1] * (4 * 65_537)))


class TestConflicts:
    async def test_verbs_that_contradict_each_other_leave_the_pool_whole(
        self, start: Start
    ) -> None:
        """All verbs at once on the same blocks, with a request that needs them."""
        rig = await start(num_blocks=128, host_blocks=128)
        prompt = fresh(401)
        await rig.ask(prompt)
        names = RestoreRequest(token_ids=prompt)
        retain = RetainRequest(token_ids=prompt, ttl_s=60)
        kv = rig.kv
        done = await asyncio.gather(
            *(kv.offload(names), kv.restore(names), kv.retain(retain)),
            *(kv.evict(names), kv.demote(names), kv.release(names)),
            *(kv.offload(names), kv.flush(Request()), kv.restore(names)),
            rig.ask(prompt),
            return_exceptions=True,
        )
        assert [one for one in done if isinstance(one, Exception)] == []

        def check(state: EngineState) -> None:
            state.pool.check_integrity()
            assert state.pool.num_referenced == state.pool.num_held

        await rig.engine.call(check)
        await kv.release(names)
        assert (await kv.flush(Request())).flushed

    async def test_each_of_two_policy_changes_at_once_answers_with_its_own(
        self, start: Start
    ) -> None:
        rig = await start()
        wanted = [
            PolicyRequest(name="lrfu", options={"half_life_s": 5.0}),
            PolicyRequest(name="lru"),
        ]
        states = await asyncio.gather(*(rig.kv.policy(one) for one in wanted * 3))
        told = {one.name: one.options for one in states}
        assert told == {"lrfu": {"half_life_s": 5.0}, "lru": {}}


class TestFactsForEviction:
    async def test_a_chat_tells_its_turn_and_the_length_of_its_prompt(
        self, start: Start
    ) -> None:
        rig = await start(num_blocks=128)
        chat = [
            {"role": "user", "content": "One?"},
            {"role": "assistant", "content": "Two."},
            {"role": "user", "content": "Three?"},
        ]
        body = {"messages": chat, "max_tokens": 1, "temperature": 0}
        url = f"{rig.url}/v1/chat/completions"
        async with rig.session.post(url, json=body) as response:
            prompt_tokens = (await response.json())["usage"]["prompt_tokens"]

        def facts(state: EngineState) -> set[tuple[int, int]]:
            policy = state.pool.policy
            assert isinstance(policy, Lru)
            known = [policy.facts(block) for block in policy.resident()]
            return {(one.turn, one.prompt_blocks) for one in known}

        assert await rig.engine.call(facts) == {(2, prompt_tokens // BLOCK)}


class TestBudget:
    async def test_all_fields_of_infinigen_are_set_and_read(self, start: Start) -> None:
        rig = await start()
        asked: dict[str, Any] = {"method": "infinigen", "tokens": 16}
        asked |= {"alpha": 4.0, "partial": 0.25, "host_tokens": 64, "victims": "lru"}
        state = await rig.kv.budget(BudgetRequest(**asked))
        assert {name: getattr(state, name) for name in asked} == asked
        with pytest.raises(ClientError, match="host_tokens"):
            await rig.kv.budget(BudgetRequest(method="h2o", tokens=16, host_tokens=64))
        with pytest.raises(ClientError, match="with vLLM's plugin"):
            await rig.kv.budget(BudgetRequest(method="h2o", tokens=16, host_bytes=64))
        assert await rig.kv.budget(BudgetRequest()) == state

    async def test_the_default_is_set_and_read(self, start: Start) -> None:
        rig = await start()
        assert (await rig.kv.budget(BudgetRequest())).method == "full"
        state = await rig.kv.budget(BudgetRequest(method="h2o", share=0.2, sinks=4))
        assert (state.method, state.share, state.sinks) == ("h2o", 0.2, 4)
        assert await rig.kv.budget(BudgetRequest()) == state
        assert (await rig.kv.budget(BudgetRequest(method="full"))).method == "full"

    async def test_new_requests_get_the_default_and_running_ones_keep_theirs(
        self, start: Start
    ) -> None:
        """Eleven pages of a prompt become the three of a budget of twelve tokens."""
        rig = await start(num_blocks=1200)

        async def used() -> int:
            return await rig.engine.call(lambda state: state.pool.num_referenced)

        async with rig.running(fresh()):
            before = await used()
            assert before >= 11
            await rig.kv.budget(BudgetRequest(method="sinks", tokens=12))
            assert await used() >= before
        async with rig.running(fresh()):
            assert await used() == 3

    async def test_nonsense_is_refused_and_the_old_one_stays(
        self, start: Start
    ) -> None:
        rig = await start()
        with pytest.raises(ClientError, match="did you mean 'h2o'"):
            await rig.kv.budget(BudgetRequest(method="h20", share=0.2))
        assert (await rig.kv.budget(BudgetRequest())).method == "full"


class TestAdapter:
    async def test_the_proxy_recognises_the_engine_and_reads_its_facts(
        self, start: Start
    ) -> None:
        rig = await start()
        adapter = EmbeddedAdapter()
        models = await adapter.models(rig.endpoint)
        assert await adapter.recognises(rig.endpoint, models)
        assert not await adapter.recognises(rig.endpoint, [])
        facts = await adapter.facts(rig.endpoint)
        assert (facts.block_size, facts.capacity_tokens) == (BLOCK, BLOCKS * BLOCK)
        assert (facts.running, facts.waiting, facts.kv_usage) == (0, 0, 0.0)
        assert (facts.version, facts.reports_cached_tokens) == ("9.9", True)
        assert facts.boot_id is not None
        assert (await adapter.probe(rig.endpoint)).ready
        assert (await adapter.generate(rig.endpoint, rig.name)).ready

    async def test_it_is_detected_before_vllm_whose_metrics_it_has(
        self, start: Start
    ) -> None:
        rig = await start()
        models = await EmbeddedAdapter().models(rig.endpoint)
        assert (await detect(rig.endpoint, models)).name == "embedded"
