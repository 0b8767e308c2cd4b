"""Plain queues are as documented: a second, naive simulator says the same.

It is written from docs/replay.md alone: lists instead of ordered maps, sums over all
requests so far instead of counts, and times from first principles. Ties are drawn, so
it follows the choices of the replay and checks that each was one of the best.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from unit.replay_rig import BLOCK, ask

from warmroute.proxy.replay.comparison import Comparison
from warmroute.proxy.replay.fleets import build_policy
from warmroute.proxy.replay.routed import RoutedFleet
from warmroute.proxy.replay.setting import Setting
from warmroute.proxy.replay.trace import Trace, TraceRequest

RATE = 1000.0
DECODE_S = 0.03

Prompts = list[tuple[int, int, int, int]]
PROMPTS = st.lists(
    st.tuples(
        st.integers(0, 9),  # seconds since the one before
        st.integers(1, 4000),
        st.integers(0, 2),  # the family whose blocks it shares
        st.integers(0, 300),
    ),
    min_size=1,
    max_size=40,
)


@dataclass
class Engine:
    """One queue and one list of blocks, the oldest first."""

    free_at: float = 0.0
    blocks: list[int] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def cached(self, request: TraceRequest) -> int:
        matched = 0
        for block in request.blocks:
            if block not in self.blocks:
                break
            matched += 1
        return BLOCK * min(matched, (request.prompt_tokens - 1) // BLOCK)

    def wait(self, now: float) -> float:
        return max(0.0, self.free_at - now)


@dataclass
class Naive:
    """N engines, and who came when with how much to compute."""

    engines: list[Engine]
    max_blocks: int
    sent: list[tuple[float, int]] = field(default_factory=list)

    def serve(self, index: int, request: TraceRequest) -> tuple[int, float]:
        engine, now = self.engines[index], request.time_s
        cached = engine.cached(request)
        uncached = request.prompt_tokens - cached
        ttft = engine.wait(now) + uncached / RATE
        engine.free_at = now + ttft
        engine.ends.append(now + ttft + request.output_tokens * DECODE_S)
        for block in reversed(request.blocks):
            if block in engine.blocks:
                engine.blocks.remove(block)
            engine.blocks.append(block)
        while len(engine.blocks) > self.max_blocks:
            del engine.blocks[0]
        self.sent.append((now, uncached))
        return cached, ttft

    def alpha(self, now: float) -> float:
        late = sum(tokens for at, tokens in self.sent if at > now - 60)
        rho = late / (60 * RATE * len(self.engines))
        return 20.0 if rho >= 0.95 else 1 / (1 - rho)


def in_turn(naive: Naive, request: TraceRequest) -> list[float]:
    """Price what is not next in turn."""
    turn = len(naive.sent) % len(naive.engines)
    return [float(at != turn) for at in range(len(naive.engines))]


def least_tokens(naive: Naive, request: TraceRequest) -> list[float]:
    return [one.wait(request.time_s) * RATE for one in naive.engines]


def least_requests(naive: Naive, request: TraceRequest) -> list[float]:
    now = request.time_s
    return [float(sum(end > now for end in one.ends)) for one in naive.engines]


def expected_ttft(naive: Naive, request: TraceRequest) -> list[float]:
    alpha = naive.alpha(request.time_s)
    return [
        one.wait(request.time_s)
        + alpha * (request.prompt_tokens - one.cached(request)) / RATE
        for one in naive.engines
    ]


RULES: dict[str, Callable[[Naive, TraceRequest], list[float]]] = {
    "round_robin": in_turn,
    "least_tokens": least_tokens,
    "least_requests": least_requests,
    "expected_ttft": expected_ttft,
}


def requests_of(prompts: Prompts) -> list[TraceRequest]:
    """Make prompts of a few families, each with a tail of its own."""
    now, requests = 0, []
    for gap, tokens, family, output in prompts:
        now += gap
        shared = min(tokens // BLOCK, 4)
        blocks = [10 * family + at for at in range(shared)]
        requests.append(ask(now, tokens, *blocks, output=output))
    return requests


@pytest.mark.parametrize("name", RULES)
@given(PROMPTS, st.integers(1, 4), st.integers(0, 3000))
@example([(1, 4000, 0, 9)] * 99, 2, 3000)
@settings(max_examples=60, deadline=None)
def test_hits_times_and_choices_are_those_of_the_naive_one(
    name: str, prompts: Prompts, num_engines: int, capacity: int
) -> None:
    where = Setting(num_engines, capacity, RATE)
    fleet = RoutedFleet(build_policy(name, 0), where, BLOCK)
    naive = Naive([Engine() for _ in range(num_engines)], capacity // BLOCK)
    for request in requests_of(prompts):
        costs = RULES[name](naive, request)
        served = fleet.serve(request, request.time_s)
        assert costs[served.backend] == pytest.approx(min(costs), abs=1e-6)
        cached, ttft = naive.serve(served.backend, request)
        assert served.cached_tokens == cached
        assert served.ttft_s == pytest.approx(ttft, abs=1e-6)
        assert served.duration_s == pytest.approx(
            ttft + DECODE_S * request.output_tokens, abs=1e-6
        )


@given(PROMPTS, st.integers(1, 4), st.integers(0, 3000), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_the_figures_are_those_of_the_naive_one(
    prompts: Prompts, num_engines: int, capacity: int, speed: int
) -> None:
    """Of turns, which leave nothing to chance; in time that runs faster."""
    requests = requests_of(prompts)
    naive = Naive([Engine() for _ in range(num_engines)], capacity // BLOCK)
    ttfts, cached, windows = [], 0, dict[int, list[int]]()
    for at, one in enumerate(requests):
        faster = TraceRequest(
            one.time_s / speed, one.prompt_tokens, one.output_tokens, one.blocks
        )
        hit, ttft = naive.serve(at % num_engines, faster)
        ttfts.append(ttft)
        cached += hit
        window = windows.setdefault(int(faster.time_s // 10), [0] * num_engines)
        window[at % num_engines] += one.prompt_tokens - hit
    imbalance = [max(one) * num_engines / sum(one) for one in windows.values()]
    trace = Trace("trace", BLOCK, tuple(requests))
    where = Setting(num_engines, capacity, RATE, speed=float(speed))
    (outcome,), _ = Comparison(trace, where).run(["round_robin"], with_oracles=False)
    figures = outcome.figures
    assert figures.ttft_mean_s == pytest.approx(sum(ttfts) / len(ttfts))
    assert figures.hit_ratio == pytest.approx(cached / trace.prompt_tokens)
    assert figures.imbalance == pytest.approx(sum(imbalance) / len(imbalance))
