"""The engine on the tiny model: asyncio outside, one compute thread inside."""

import asyncio
import os
import random
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from warmroute.adapters.embedded.budget.options import BudgetOptions
from warmroute.adapters.embedded.budget.rules import TokenRules
from warmroute.adapters.embedded.engine.engine import Engine
from warmroute.adapters.embedded.engine.options import EngineOptions
from warmroute.adapters.embedded.engine.request import EngineRefused, GenerationRequest
from warmroute.adapters.embedded.engine.stats import EngineObserver, FinishedRequest
from warmroute.adapters.embedded.engine.stream import EngineFailed, RequestStream
from warmroute.adapters.embedded.model.loading import LoadedModel, load_model

Start = Callable[..., Awaitable[Engine]]


@pytest.fixture(scope="module")
def tiny() -> LoadedModel:
    return load_model("tiny")


@pytest.fixture
async def start(tiny: LoadedModel) -> AsyncIterator[Start]:
    engines = []

    async def start(
        observer: EngineObserver | None = None, rules: Any = None, **settings: Any
    ) -> Engine:
        options = EngineOptions(**{"num_blocks": 64, **settings})
        engine = Engine(tiny, options, observer=observer, rules=rules)
        engines.append(engine)
        await engine.start()
        return engine

    yield start
    for engine in engines:
        await engine.close()


def prompt(length: int, first: int = 0) -> list[int]:
    return [3 + (first + 7 * at) % 250 for at in range(length)]


def ask(ids: list[int], **fields: Any) -> GenerationRequest:
    given = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True, **fields}
    return GenerationRequest("r", ids, **given)


async def read(stream: RequestStream) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = {}
    async for delta in stream:
        tokens.setdefault(delta.index, []).extend(delta.token_ids)
    return tokens


async def integrity(engine: Engine) -> int:
    """Check the pool; return the blocks in use."""

    def check(state: Any) -> int:
        state.pool.check_integrity()
        return int(state.pool.num_referenced)

    return await engine.call(check)


class TestGeneration:
    async def test_text_is_that_of_the_tokens(self, start, tiny):
        """The pieces of text join to the decoded tokens."""
        engine = await start()
        stream = engine.submit(ask(prompt(40), max_tokens=30, temperature=1.0, seed=3))
        deltas = [delta async for delta in stream]

        ids = [token for delta in deltas for token in delta.token_ids]
        assert len(ids) == 30
        assert "".join(delta.text for delta in deltas) == tiny.tokenizer.decode(ids)
        assert deltas[-1].finish_reason == "length"

    async def test_stop_string_ends_the_text_in_front_of_it(self, start):
        """A string that the seeded answer contains cuts it there."""
        engine = await start()
        fields = {"max_tokens": 60, "temperature": 1.0, "seed": 5}
        whole = ""
        async for delta in engine.submit(ask(prompt(20), **fields)):
            whole += delta.text
        stop = whole[20:23]
        cut, last = "", None
        async for delta in engine.submit(ask(prompt(20), stop=(stop,), **fields)):
            cut, last = cut + delta.text, delta

        assert cut == whole[: whole.index(stop)]
        assert (last.finish_reason, last.stop_reason) == ("stop", stop)

    async def test_seed_repeats_choices_alone_and_in_company(self, start):
        """The same seed gives the same tokens, whatever else runs beside."""
        engine = await start(num_blocks=256)
        request = ask(prompt(37), n=3, temperature=1.0, seed=11)
        alone = await read(engine.submit(request))
        others = [
            engine.submit(ask(prompt(20 + at, at), temperature=1.0)) for at in range(9)
        ]
        together = await read(engine.submit(request))

        assert together == alone
        assert len({tuple(tokens) for tokens in alone.values()}) == 3
        await asyncio.gather(*map(read, others))

    async def test_warm_request_skips_the_cached_blocks(self, start):
        """All but the last block of the prompt is served from the cache."""
        engine = await start()
        await read(engine.submit(ask(prompt(100))))
        stream = engine.submit(ask(prompt(100)))
        tokens = await read(stream)

        assert stream.num_cached_tokens == 96
        assert len(tokens[0]) == 12
        assert engine.stats().prefix_hits == 96

    async def test_best_of_eight_shares_the_prompt(self, start):
        """2,000 prompt tokens and 8 times 100 new ones peak at 181 blocks of 16."""
        engine = await start(num_blocks=200, max_num_seqs=8)
        request = ask(prompt(2000), n=8, max_tokens=100, temperature=1.0)
        tokens = await read(engine.submit(request))

        assert [len(tokens[at]) for at in range(8)] == [100] * 8
        assert engine.stats().peak_blocks == 181
        assert await integrity(engine) == 0


class TestMemory:
    async def test_preempted_sequences_end_as_others_do(self, start):
        """In a pool that is too small for all, all complete, and greedily alike.

        Recomputed logits differ by rounding, so a near tie may go the other way:
        the tokens of at least half of the requests must be the same.
        """
        requests = [ask(prompt(30 + at, 9 * at), max_tokens=60) for at in range(6)]
        roomy = await start(num_blocks=200)
        calm = await asyncio.gather(*(read(roomy.submit(one)) for one in requests))
        tight = await start(num_blocks=16)
        hectic = await asyncio.gather(*(read(tight.submit(one)) for one in requests))

        assert roomy.stats().preemptions == 0
        assert tight.stats().preemptions > 0
        assert [len(one[0]) for one in hectic] == [60] * 6
        assert sum(a == b for a, b in zip(calm, hectic, strict=True)) >= 3
        assert await integrity(tight) == 0

    async def test_thousand_aborted_requests_leave_every_block_free(self, start):
        """Waiting, in prefill, decoding, forked: wherever the abort comes."""
        engine = await start(num_blocks=48, max_num_seqs=8, max_batched_tokens=64)
        chance = random.Random(1)

        async def one(number: int) -> None:
            request = ask(
                prompt(chance.randint(1, 200), number % 5),
                n=chance.choice([1, 1, 1, 3]),
                max_tokens=100,
                priority=chance.randint(0, 2),
                temperature=1.0,
            )
            patience = chance.randint(0, 4)
            async with engine.submit(request) as stream:
                async for _ in stream:
                    patience -= 1
                    if patience < 0:
                        break

        for batch in range(20):
            tasks = [
                asyncio.create_task(one(50 * batch + number)) for number in range(50)
            ]
            await asyncio.sleep(0)
            for task in chance.sample(tasks, 40):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        while engine.stats().running + engine.stats().waiting:
            await engine.call(lambda state: None)

        assert await integrity(engine) == 0

    async def test_dropped_stream_is_aborted(self, start):
        """Nobody listens, so nothing is computed for it."""
        finished = asyncio.Event()
        loop = asyncio.get_running_loop()

        class Watch(EngineObserver):
            def finished(self, outcome: FinishedRequest) -> None:
                reasons.append(outcome.reasons)
                loop.call_soon_threadsafe(finished.set)

        reasons: list[Any] = []
        engine = await start(observer=Watch())
        stream = engine.submit(ask(prompt(20), max_tokens=900))
        await anext(stream)
        del stream
        await finished.wait()

        assert reasons == [("abort",)]

    async def test_offloaded_prompt_comes_back_with_its_bytes(self, start):
        """Blocks that went to the host and back give the same greedy tokens."""
        engine = await start(host_blocks=16)
        first = await read(engine.submit(ask(prompt(100))))
        warm = await read(engine.submit(ask(prompt(100))))

        def offload(state: Any) -> int:
            return state.offload([one.block_hash for one in state.pool.snapshot()])

        assert await engine.call(offload) == 6
        stream = engine.submit(ask(prompt(100)))
        restored = await read(stream)

        assert stream.num_cached_tokens == 96
        assert engine.stats().host_hits == 96
        assert restored == warm
        assert len(first[0]) == 12


class TestBudget:
    @pytest.mark.parametrize("method", ["window", "sinks", "h2o", "infinigen"])
    async def test_sequence_shrinks_to_its_budget(self, start, method):
        """After the prompt only the budget's pages are in use."""
        engine = await start()
        budget = BudgetOptions(method, tokens=32)
        stream = engine.submit(ask(prompt(200), n=2, max_tokens=40, budget=budget))
        await anext(stream)
        in_use = await integrity(engine)
        tokens = await read(stream)

        assert in_use <= 4
        assert [len(tokens[at]) for at in (0, 1)] == [39, 40]
        assert await integrity(engine) == 0

    async def test_budget_of_everything_changes_nothing(self, start):
        """H2O with room for all tokens gives the greedy tokens of full attention."""
        engine = await start()
        budget = BudgetOptions("h2o", tokens=200)
        full = await read(engine.submit(ask(prompt(100), cache_salt="a")))
        kept = await read(
            engine.submit(ask(prompt(100), cache_salt="b", budget=budget))
        )

        assert len(kept[0]) == 12
        assert kept[0][:3] == full[0][:3]

    async def test_budget_that_cannot_fit_beside_its_prompt_is_refused(self, start):
        """The message says how many blocks it would take."""
        engine = await start(num_blocks=16)
        budget = BudgetOptions("sinks", tokens=64)

        with pytest.raises(EngineRefused, match="need 19 blocks"):
            engine.submit(ask(prompt(228), max_tokens=12, budget=budget))


class TestLife:
    async def test_close_drains_what_is_open(self, start):
        """Requests finish in the time given; new ones are refused."""
        engine = await start()
        stream = engine.submit(ask(prompt(20), max_tokens=50))
        closing = asyncio.create_task(engine.close(drain_s=60))
        tokens = await read(stream)
        await closing

        assert len(tokens[0]) == 50
        with pytest.raises(EngineRefused, match="closing") as refused:
            engine.submit(ask(prompt(5)))
        assert refused.value.status == 503

    async def test_close_without_drain_aborts(self, start):
        """What is open ends with the reason abort; no thread is left."""
        engine = await start()
        stream = engine.submit(ask(prompt(20), max_tokens=900))
        await anext(stream)
        await engine.close()
        reasons = [delta.finish_reason async for delta in stream]

        assert reasons[-1] == "abort"
        assert "warmroute-engine" not in {one.name for one in threading.enumerate()}

    async def test_failing_model_fails_requests_and_lives_on(self, start, tiny):
        """A step that raises ends its requests loudly; the next ones are served."""
        engine = await start()
        forward = type(tiny.model).forward
        failing = [True]

        def flaky(self: Any, batch: Any, store: Any) -> Any:
            if failing:
                failing.clear()
                raise FloatingPointError("not a number")
            return forward(self, batch, store)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(tiny.model), "forward", flaky)
            with pytest.raises(EngineFailed, match="FloatingPointError: not a number"):
                await read(engine.submit(ask(prompt(20))))
            tokens = await read(engine.submit(ask(prompt(20))))

        assert len(tokens[0]) == 12
        assert engine.failure is None
        assert await integrity(engine) == 0

    async def test_broken_bookkeeping_kills_the_engine_but_hangs_nobody(self, start):
        """Open requests fail, health knows, and later requests are refused."""
        engine = await start()
        stream = engine.submit(ask(prompt(20), max_tokens=900))
        await anext(stream)

        def break_it(state: Any) -> None:
            state.scheduler.running.append(None)

        await engine.call(break_it)
        with pytest.raises(EngineFailed, match="the engine died"):
            await read(stream)

        assert engine.failure is not None
        with pytest.raises(EngineRefused) as refused:
            engine.submit(ask(prompt(5)))
        assert refused.value.status == 503
        with pytest.raises(EngineRefused):
            await engine.call(lambda state: None)

    async def test_exception_of_a_call_comes_back(self, start):
        """The engine does not care."""
        engine = await start()

        def fail(state: Any) -> None:
            raise KeyError("no such block")

        with pytest.raises(KeyError, match="no such block"):
            await engine.call(fail)
        assert await integrity(engine) == 0

    async def test_more_requests_than_may_wait_are_refused(self, start):
        """The message says how many are open; the status is 429."""
        engine = await start(max_waiting=2, max_num_seqs=1)
        streams = [engine.submit(ask(prompt(5), max_tokens=500)) for _ in range(3)]

        with pytest.raises(EngineRefused, match="3 requests are open") as refused:
            engine.submit(ask(prompt(5)))
        assert refused.value.status == 429
        assert len(streams) == 3

    async def test_too_long_request_is_refused_at_once(self, start):
        """The limit is that of the blocks when no other is set."""
        engine = await start(num_blocks=4)

        with pytest.raises(EngineRefused, match="allowed: 64 together"):
            engine.submit(ask(prompt(60), max_tokens=5))


class TestProcesses:
    """Two processes compute each step."""

    async def test_all_kinds_of_requests_run_beside_one_another(self, start):
        """With choices, token budgets and preemption; every block comes back."""
        engine = await start(threads=2, num_blocks=24, rules=TokenRules())
        budget = BudgetOptions(method="h2o", share=0.5, sinks=2, recent=8)
        streams = [
            engine.submit(ask(prompt(90), n=2)),
            engine.submit(ask(prompt(60, 9), budget=budget)),
            engine.submit(ask(prompt(30, 40), max_tokens=40)),
            engine.submit(ask(prompt(100, 80), max_tokens=40)),
        ]
        answers = await asyncio.gather(*(read(stream) for stream in streams))

        lengths = [[len(ids) for ids in answer.values()] for answer in answers]
        assert lengths == [[12, 12], [12], [40], [40]]
        assert await integrity(engine) == 0

    async def test_requests_behind_a_killed_process_are_answered(self, start):
        """By one process alone."""
        engine = await start(threads=2)
        await read(engine.submit(ask(prompt(40))))
        (child,) = [mate.pid for mate in engine._crew._mates]
        os.kill(child, signal.SIGKILL)
        await asyncio.to_thread(os.waitid, os.P_PID, child, os.WEXITED | os.WNOWAIT)

        answer = await read(engine.submit(ask(prompt(40, 50))))
        assert len(answer[0]) == 12
        assert engine.failure is None

    async def test_an_engine_that_never_started_ends_its_processes(self, tiny):
        engine = Engine(tiny, EngineOptions(num_blocks=64, threads=3))
        children = [mate.pid for mate in engine._crew._mates]
        await engine.close()
        assert len(children) == 2
        for child in children:
            with pytest.raises(ProcessLookupError):
                os.kill(child, 0)
