"""warmroute in front of two real vLLM engines with a tiny random model."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from two_vllm.engines import Engine, EngineOptions

from warmroute.proxy.demo.chats import read_chats
from warmroute.proxy.demo.compare import Outcome, Workload, run_policy
from warmroute.proxy.demo.front import Front, Setup, running_front
from warmroute.proxy.demo.load import Answer, ask
from warmroute.proxy.demo.progress import Step

pytestmark = [
    pytest.mark.engines,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "01_two_vllm"
MODEL = "tiny"
WORKLOAD = Workload(
    read_chats(8), users=4, open_chats=2, model=MODEL, max_tokens=8, think_s=0.05
)
# Long streams last many times longer than the short answers before the kill.
LONG_STREAMS = 6
LONG_TOKENS = 6000
SHORT_TURNS = 15
KILL_AFTER = 4
Outcomes = dict[str, Outcome]
FrontBy = Callable[[str], AbstractAsyncContextManager[Front]]


@pytest.fixture(scope="session")
def setup(engine_options: EngineOptions) -> Setup:
    """Return the example's configuration, with the model's own tokenizer."""
    return Setup(EXAMPLE / "config.yaml", MODEL, str(engine_options.model))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def outcomes(
    engines: Sequence[Engine],
    http: aiohttp.ClientSession,
    setup: Setup,
    tmp_path_factory: pytest.TempPathFactory,
) -> Outcomes:
    folder = tmp_path_factory.mktemp("replays")
    workload = replace(WORKLOAD, setup=setup)
    return {
        policy: await run_policy(policy, workload, engines, folder, http)
        for policy in ("round_robin", "expected_ttft")
    }


@pytest.fixture
def front_by(
    engines: Sequence[Engine],
    http: aiohttp.ClientSession,
    setup: Setup,
    tmp_path: Path,
) -> FrontBy:
    log = tmp_path / "warmroute.log"
    return lambda policy: running_front(policy, engines, log, http, setup)


@pytest_asyncio.fixture(loop_scope="session")
async def warmroute(front_by: FrontBy) -> AsyncIterator[Front]:
    async with front_by("expected_ttft") as running:
        yield running


async def test_cached_tokens_are_foretold(
    engines: Sequence[Engine], http: aiohttp.ClientSession, setup: Setup, tmp_path: Path
) -> None:
    """With events and the model's tokenizer the view is what the engines have.

    One user, so that nobody evicts what another was promised.
    """
    alone = replace(WORKLOAD, chats=read_chats(3), users=1, setup=setup)
    outcome = await run_policy("round_robin", alone, engines, tmp_path, http)
    assert outcome.hit_ratio > 0
    assert outcome.predicted_ratio is not None
    assert outcome.predicted_ratio >= 0.95


@pytest.mark.parametrize("policy", ["round_robin", "expected_ttft"])
async def test_every_request_is_answered_and_none_twice(
    outcomes: Outcomes, policy: str
) -> None:
    outcome = outcomes[policy]
    assert outcome.errors == ()
    assert sum(len(chat.turns) for chat in WORKLOAD.chats) == outcome.requests
    assert outcome.requests == sum(outcome.finished.values())


@pytest.mark.parametrize("policy", ["round_robin", "expected_ttft"])
async def test_usage_reports_the_hits_that_the_engines_count(
    outcomes: Outcomes, policy: str
) -> None:
    outcome = outcomes[policy]
    assert outcome.cached_tokens > 0
    assert outcome.engine_hit_tokens == outcome.cached_tokens
    assert outcome.engine_queried_tokens == outcome.prompt_tokens


async def test_both_engines_get_a_share(outcomes: Outcomes) -> None:
    for outcome in outcomes.values():
        assert min(outcome.finished.values()) > outcome.requests / 5


async def test_expected_ttft_finds_warmer_caches_than_round_robin(
    outcomes: Outcomes,
) -> None:
    assert outcomes["expected_ttft"].hit_ratio > outcomes["round_robin"].hit_ratio


async def test_a_stream_has_the_structure_the_engine_gave_it(
    engines: Sequence[Engine], warmroute: Front, http: aiohttp.ClientSession
) -> None:
    """Texts may differ between cold and warm prefills, so shapes are compared."""
    direct = await _stream(http, engines[0].url)
    relayed = await _stream(http, warmroute.url)
    assert _shape(direct) == _shape(relayed)
    assert relayed.endswith(b"data: [DONE]\n\n")


@pytest_asyncio.fixture(loop_scope="session")
async def in_turn(front_by: FrontBy) -> AsyncIterator[Front]:
    """Give each engine every other request, however warm the other one is."""
    async with front_by("round_robin") as running:
        yield running


async def test_a_killed_engine_fails_only_the_streams_begun_on_it(
    engines: Sequence[Engine], in_turn: Front, http: aiohttp.ClientSession
) -> None:
    """The engine then comes back on its port and gets requests again."""
    killed, warmroute = engines[1], in_turn
    long_streams = [
        asyncio.create_task(_ask(http, warmroute, f"story {number}", LONG_TOKENS))
        for number in range(LONG_STREAMS)
    ]
    during: list[Answer] = []
    await _has_streams(killed, warmroute, http)
    async with asyncio.timeout(120), asyncio.TaskGroup() as users:
        for number in range(4):
            users.create_task(_short_chat(http, warmroute, killed, number, during))
    answers = [*await asyncio.gather(*long_streams), *during]
    failed = [answer for answer in answers if answer.error]
    assert failed, "no stream was running on the engine when it was killed"
    assert {(200, killed.name)} == {(one.status, one.backend) for one in failed}
    assert all((one.error or "").startswith("error event") for one in failed)
    assert all(one.done_events == 0 for one in failed)
    await _revive(killed)
    await _reaches(killed, warmroute, http)


async def _ask(
    http: aiohttp.ClientSession, warmroute: Front, text: str, max_tokens: int
) -> Answer:
    messages = [{"role": "user", "content": text}]
    return await ask(http, warmroute.url, MODEL, messages, max_tokens, ignore_eos=True)


async def _has_streams(
    engine: Engine, warmroute: Front, http: aiohttp.ClientSession
) -> None:
    """Wait until an answer of the engine is past its first token."""
    async with asyncio.timeout(60):
        while True:
            async with http.get(f"{warmroute.admin_url}/api/state") as response:
                backends = (await response.json())["backends"]
            loads = {one["name"]: one["load"] for one in backends}
            if loads[engine.name]["decodes"] >= 1:
                return
            await asyncio.sleep(0.02)


async def _short_chat(
    http: aiohttp.ClientSession,
    warmroute: Front,
    killed: Engine,
    user: int,
    answers: list[Answer],
) -> None:
    for number in range(SHORT_TURNS):
        text = f"user {user} asks for the {number}th time"
        answers.append(await _ask(http, warmroute, text, 4))
        if len(answers) == KILL_AFTER:
            killed.kill()


async def _revive(engine: Engine) -> None:
    await engine.stop()
    await engine.start()
    with Step(f"restarting engine {engine.name}") as step:
        await engine.ready(step)


async def _reaches(
    engine: Engine, warmroute: Front, http: aiohttp.ClientSession
) -> None:
    async with asyncio.timeout(60):
        while True:
            asked = [_ask(http, warmroute, f"hello {n}", 4) for n in range(8)]
            answers = await asyncio.gather(*asked)
            assert [None] * len(answers) == [answer.error for answer in answers]
            if engine.name in {answer.backend for answer in answers}:
                return
            await asyncio.sleep(0.5)


async def _stream(http: aiohttp.ClientSession, url: str) -> bytes:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Tell me about block tables."}],
        # So many that a busy engine cannot send all of them along with the last.
        "max_tokens": 400,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with http.post(f"{url}/v1/chat/completions", json=body) as response:
        assert response.status == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        return await response.read()


def _shape(stream: bytes) -> list[Any]:
    """Return the kinds of lines in order, a run of equal events as one."""
    events = stream.decode().split("\n\n")
    return [shape for shape, _ in groupby(_event_shape(event) for event in events)]


def _event_shape(event: str) -> Any:
    if not event.startswith("data: {"):
        return event
    return _keys(json.loads(event.removeprefix("data: ")))


def _keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _keys(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_keys(inner) for inner in value]
    return type(value).__name__
