"""Token budgets inside the engine, on the tiny model."""

from collections.abc import AsyncIterator

import pytest

from warmroute.adapters.embedded.budget.options import BudgetOptions
from warmroute.adapters.embedded.engine.engine import Engine
from warmroute.adapters.embedded.engine.options import EngineOptions
from warmroute.adapters.embedded.engine.request import GenerationRequest
from warmroute.adapters.embedded.model.loading import load_model

METHODS = ("h2o", "infinigen", "sinks", "window")
PROMPT = [3 + 7 * at % 250 for at in range(100)]


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine(load_model("tiny"), EngineOptions(num_blocks=64))
    await engine.start()
    yield engine
    await engine.close()


def ask(budget: BudgetOptions | None, **fields: object) -> GenerationRequest:
    given = {"max_tokens": 20, "temperature": 0.0, "ignore_eos": True, **fields}
    return GenerationRequest("r", PROMPT, budget=budget, **given)


async def referenced(engine: Engine) -> int:
    def count(state) -> int:
        state.pool.check_integrity()
        return state.pool.num_referenced

    return await engine.call(count)


@pytest.mark.parametrize("method", METHODS)
async def test_the_pages_beyond_the_budget_go_back_to_the_pool(engine, method):
    """100 tokens are 7 blocks of 16; a budget of 24 tokens is 2."""
    stream = engine.submit(ask(BudgetOptions(method, tokens=24), max_tokens=400))
    ids, held = [], set()

    def note(state) -> None:
        state.pool.check_integrity()
        if state.scheduler.running:  # the engine may be ahead of who reads
            held.add(state.pool.num_referenced)

    async for delta in stream:
        ids += delta.token_ids
        if 5 < len(ids) < 100:
            await engine.call(note)
    assert len(ids) == 400
    assert held == {2}
    assert await referenced(engine) == 0


@pytest.mark.parametrize("method", METHODS)
async def test_choices_of_one_prompt_have_budgets_of_their_own(engine, method):
    """The same seedless greedy answer twice, from separate memories."""
    budget = BudgetOptions(method, share=0.2)
    answers: dict[int, list[int]] = {}
    async for delta in engine.submit(ask(budget, n=2)):
        answers.setdefault(delta.index, []).extend(delta.token_ids)
    assert sorted(answers) == [0, 1]
    assert answers[0] == answers[1]
    assert len(answers[0]) == 20
    assert await referenced(engine) == 0


@pytest.mark.parametrize("method", METHODS)
async def test_an_abort_under_a_budget_leaves_every_page_free(engine, method):
    stream = engine.submit(ask(BudgetOptions(method, tokens=24), max_tokens=400))
    async for delta in stream:
        if delta.token_ids:
            break
    stream.abort()
    async for _ in stream:
        pass
    assert await referenced(engine) == 0
