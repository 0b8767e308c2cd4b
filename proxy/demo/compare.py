"""Replay the same chats once a policy, with cold caches, and compare."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path

import aiohttp

from warmroute.proxy.demo.chats import Chat
from warmroute.proxy.demo.engine_view import Counters, EngineView
from warmroute.proxy.demo.errors import DemoError
from warmroute.proxy.demo.front import Front, Setup, running_front
from warmroute.proxy.demo.load import Answer, Plan, ask, mean, percentile, replay
from warmroute.proxy.demo.progress import Step

DIRECT = "direct"
_WARM_UP_WORDS = 600


@dataclass(frozen=True, slots=True)
class Workload:
    """What every policy gets alike."""

    chats: Sequence[Chat]
    users: int
    open_chats: int
    model: str
    max_tokens: int
    think_s: float
    setup: Setup = field(default_factory=Setup)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy's replay. Times in seconds, tokens as the engines count.

    *predicted_ratio* is the share of answers whose cached tokens warmroute foretold.
    """

    policy: str
    requests: int
    errors: tuple[str, ...]
    prompt_tokens: int
    cached_tokens: int
    engine_queried_tokens: int
    engine_hit_tokens: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    duration_s: float
    finished: Mapping[str, int]
    predicted_ratio: float | None = None
    paid_twice_ratio: float | None = None

    @property
    def hit_ratio(self) -> float:
        """Share of the prompt tokens that the engines found in their caches."""
        return self.engine_hit_tokens / max(self.engine_queried_tokens, 1)

    @property
    def is_exactly_once(self) -> bool:
        """Tell whether the engines finished as many requests as were sent."""
        return sum(self.finished.values()) == self.requests - len(self.errors)


async def warm_up(
    engines: Sequence[EngineView], model: str, http: aiohttp.ClientSession
) -> None:
    """Let every engine run each kind of step once before any is timed."""
    text = "warm " * _WARM_UP_WORDS
    for engine in engines:
        for content in (text, "hello"):
            messages = [{"role": "user", "content": content}]
            answer = await ask(http, engine.url, model, messages, 4)
            if answer.error:
                raise DemoError(f"{engine.url} does not answer: {answer.error}")


async def run_policy(
    policy: str,
    workload: Workload,
    engines: Sequence[EngineView],
    folder: Path,
    http: aiohttp.ClientSession,
) -> Outcome:
    """Empty the caches, replay *workload* under *policy*, and account.

    The policy ``direct`` plays round robin from the client, without warmroute.
    """
    async with cold_front(policy, workload, engines, folder, http) as front:
        return await play(policy, workload, engines, front, http)


async def play(
    policy: str,
    workload: Workload,
    engines: Sequence[EngineView],
    front: Front | None,
    http: aiohttp.ClientSession,
) -> Outcome:
    """Replay *workload* through *front*, or past it where there is none."""
    before = [await engine.counters() for engine in engines]
    urls = cycle([engine.url for engine in engines] if not front else [front.url])
    with Step(f"{policy:<14}") as step:
        answers = await _replay(workload, lambda: next(urls), step, http)
        duration_s = step.elapsed_s
    after = [await engine.settled() for engine in engines]
    state = await front.state(http) if front else {}
    deltas = {
        engine.name: late.since(early)
        for engine, early, late in zip(engines, before, after, strict=True)
    }
    done = outcome(policy, answers, deltas, duration_s)
    return replace(done, paid_twice_ratio=state.get("paid_twice_ratio"))


def outcome(
    policy: str,
    answers: Sequence[Answer],
    deltas: Mapping[str, Counters],
    duration_s: float,
) -> Outcome:
    """Sum up one replay."""
    ttfts = [answer.ttft_s for answer in answers if answer.ttft_s is not None]
    return Outcome(
        policy=policy,
        requests=len(answers),
        errors=tuple(answer.error for answer in answers if answer.error),
        prompt_tokens=sum(answer.prompt_tokens for answer in answers),
        cached_tokens=sum(answer.cached_tokens for answer in answers),
        engine_queried_tokens=sum(delta.queried_tokens for delta in deltas.values()),
        engine_hit_tokens=sum(delta.hit_tokens for delta in deltas.values()),
        ttft_mean_s=mean(ttfts),
        ttft_p50_s=percentile(ttfts, 0.5),
        ttft_p99_s=percentile(ttfts, 0.99),
        duration_s=duration_s,
        finished={name: delta.finished for name, delta in deltas.items()},
        predicted_ratio=_predicted(answers),
    )


def _predicted(answers: Sequence[Answer]) -> float | None:
    """Return the share of answers whose cached tokens were foretold to the token."""
    told = [one for one in answers if one.predicted_tokens is not None]
    right = sum(one.predicted_tokens == one.cached_tokens for one in told)
    return right / len(told) if told else None


@asynccontextmanager
async def cold_front(
    policy: str,
    workload: Workload,
    engines: Sequence[EngineView],
    folder: Path,
    http: aiohttp.ClientSession,
) -> AsyncIterator[Front | None]:
    """Empty the caches, then run warmroute for the block; none for ``direct``."""
    for engine in engines:
        await engine.settled()
        await engine.flush()
    if policy == DIRECT:
        yield None
        return
    log = folder / f"warmroute-{policy}.log"
    setup = workload.setup
    async with running_front(policy, engines, log, http, setup) as front:
        yield front


async def _replay(
    workload: Workload,
    target: Callable[[], str],
    step: Step,
    http: aiohttp.ClientSession,
) -> list[Answer]:
    seen: list[Answer] = []

    def on_answer(answer: Answer) -> None:
        seen.append(answer)
        failed = sum(answer.error is not None for answer in seen)
        step.count(len(seen), plan.num_requests, f"{failed} failed" if failed else "")

    plan = Plan(
        workload.chats,
        workload.users,
        workload.open_chats,
        workload.model,
        workload.max_tokens,
        workload.think_s,
        target=target,
        on_answer=on_answer,
    )
    return await replay(plan, http)
