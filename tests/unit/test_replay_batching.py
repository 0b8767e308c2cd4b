"""Engines that batch do what the model says, by hand and against a naive one."""

from math import inf
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from unit.naive_engine import Job, NaiveEngine
from unit.replay_rig import trace_of

from warmroute.proxy.replay.arrival import Arrival
from warmroute.proxy.replay.batching_engine import BatchingEngine
from warmroute.proxy.replay.comparison import Comparison
from warmroute.proxy.replay.engine_constants import EngineConstants
from warmroute.proxy.replay.kv_memory import KvMemory
from warmroute.proxy.replay.prefix_tree import PrefixTree
from warmroute.proxy.replay.sequence import Sequence
from warmroute.proxy.replay.setting import Setting
from warmroute.proxy.replay.trace import Trace, TraceRequest
from warmroute.proxy.replay.view_grade import read_view

BLOCK = 4
CONSTANTS = EngineConstants(
    step_s=1.0,
    prefill_s_per_token=0.1,
    attention_s_per_pair=0.001,
    sequence_s=0.01,
    context_s_per_token=0.002,
    max_batched_tokens=16,
    max_sequences=4,
    kv_tokens=200,
)


def small(*requests: TraceRequest) -> Trace:
    return Trace("trace", BLOCK, requests).indexed()


def ask(
    time_s: float, tokens: int, output: int, blocks: tuple[int, ...] = ()
) -> TraceRequest:
    """Make a request; blocks that are not named are unlike all others."""
    rest = range(len(blocks), tokens // BLOCK)
    unlike = (hash((time_s, tokens, at)) | 1 << 62 for at in rest)
    return TraceRequest(time_s, tokens, output, (*blocks, *unlike))


def serve(trace: Trace, capacity: int) -> tuple[list[Sequence], list[float], int]:
    """Serve all of *trace* on one engine; returns the sequences, and their ends."""
    assert trace.tree is not None
    memory = KvMemory(trace.tree, BLOCK, capacity)
    engine = BatchingEngine(CONSTANTS, memory, trace.tree, BLOCK)
    coming = [
        Sequence(Arrival(one.time_s, one), trace.tree.path(one.segment), BLOCK)
        for one in trace.requests
    ]
    ends = dict.fromkeys(coming, inf)
    for sequence in coming:
        at = sequence.arrival.time_s
        while engine.next_at < at:
            now = engine.next_at
            ends.update(dict.fromkeys(engine.advance()[1], now))
        engine.submit(sequence, at)
    while engine.next_at < inf:
        now = engine.next_at
        ends.update(dict.fromkeys(engine.advance()[1], now))
    assert memory.private_tokens == memory.promised_tokens == memory.held_tokens == 0
    assert memory.resident_tokens <= capacity
    return coming, list(ends.values()), engine.num_preemptions


class TestOneEngine:
    def test_a_prompt_alone_takes_a_step_a_chunk_and_a_step_a_token(self) -> None:
        (sequence,), (end,), _ = serve(small(ask(0.0, 20, 3)), 100)
        first = 1 + 0.01 + 16 * 0.1 + 0.001 * 16 * 17 / 2
        second = 1 + 0.01 + 4 * 0.1 + 0.001 * (17 + 18 + 19 + 20)
        assert sequence.first_token_at == pytest.approx(first + second)
        decodes = 2 * (1 + 0.01) + 0.002 * (20 + 21)
        assert end == pytest.approx(first + second + decodes)

    def test_streams_go_before_prompts(self) -> None:
        """Beside a stream, 15 of the 16 tokens of a step are left for a prompt."""
        (_, second), _, _ = serve(small(ask(0.0, 4, 40), ask(2.0, 16, 1)), 200)
        came_in = 1.42 + 1.01 + 0.002 * 4
        most = 1 + 2 * 0.01 + 0.002 * 5 + 15 * 0.1 + 0.001 * 15 * 16 / 2
        last = 1 + 2 * 0.01 + 0.002 * 6 + 0.1 + 0.001 * 16
        assert second.first_token_at == pytest.approx(came_in + most + last)

    def test_blocks_can_be_hit_as_soon_as_their_chunk_is_computed(self) -> None:
        """The second comes while the first's second chunk is under way."""
        blocks = tuple(range(1, 9))
        trace = small(ask(0.0, 32, 1, blocks), ask(3.0, 33, 1, blocks))
        (first, second), _, _ = serve(trace, 200)
        assert (first.cached_tokens, second.cached_tokens) == (0, 32)
        trace = small(ask(0.0, 48, 1, blocks), ask(2.0, 33, 1, blocks))
        (_, second), _, _ = serve(trace, 200)
        assert second.cached_tokens == 32

    def test_one_token_is_always_computed(self) -> None:
        blocks = (1, 2)
        (_, again), _, _ = serve(
            small(ask(0.0, 8, 1, blocks), ask(9.0, 8, 1, blocks)), 100
        )
        assert again.cached_tokens == 4

    def test_who_has_no_room_waits_until_another_ends(self) -> None:
        (first, second), ends, _ = serve(small(ask(0.0, 12, 5), ask(0.1, 12, 1)), 24)
        assert second.first_token_at > ends[0] > first.first_token_at

    def test_the_newest_gives_way_and_is_computed_again(self) -> None:
        """Both fit at first, and grow beyond the memory together."""
        (old, new), ends, num_preemptions = serve(
            small(ask(0.0, 10, 12), ask(0.1, 10, 12)), 30
        )
        assert num_preemptions == 1
        assert new.generated > 0
        assert ends[0] < ends[1]
        assert old.generated == 0


PROMPTS = st.lists(
    st.tuples(
        st.floats(0, 60, allow_subnormal=False),
        st.integers(1, 44),
        st.integers(0, 12),
        st.integers(0, 4),
        st.integers(0, 15),
    ),
    min_size=1,
    max_size=14,
)


def chained(length: int, way: int) -> tuple[int, ...]:
    """Return block ids that each stand for all the blocks in front of them, too."""
    bits = f"{way:04b}"
    return tuple(int("1" + bits[: depth + 1], 2) for depth in range(length))


CACHED_WHOLE = [
    *[(0.0, 1, 0, 0, 0)] * 5,
    *((0.0, 10, 7, 0, 0), (0.0, 11, 6, 0, 0), (0.0, 16, 3, 4, 0), (1.0, 1, 3, 0, 0)),
    *((1.0, 7, 0, 0, 0), (1.0, 16, 0, 4, 0)),
]
"""The last prompt is all cached, and there is no room to compute of it elsewhere."""


class TestAgainstNaive:
    @example(CACHED_WHOLE, 56)
    @settings(max_examples=60, deadline=None)
    @given(PROMPTS, st.sampled_from((56, 80, 120, 400)))
    def test_times_hits_and_preemptions_are_those_of_single_steps(
        self, drawn: list[tuple[float, int, int, int, int]], capacity: int
    ) -> None:
        requests = []
        for at, (time_s, tokens, output, length, way) in enumerate(sorted(drawn)):
            shared = chained(min(length, tokens // BLOCK), way)
            requests.append(ask(time_s + 0.0137 * at, tokens, output, shared))
        trace = small(*requests)
        naive = NaiveEngine(CONSTANTS, BLOCK, capacity)
        jobs: list[Job] = naive.run(trace.requests)
        sequences, ends, num_preemptions = serve(trace, capacity)
        for job, sequence, end in zip(jobs, sequences, ends, strict=True):
            assert sequence.cached_tokens == job.cached
            assert sequence.first_token_at == pytest.approx(job.first_at)
            assert end == pytest.approx(job.end_at)
        assert num_preemptions == naive.num_preemptions


class TestTree:
    @given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=20))
    def test_prompts_come_out_as_they_went_in(self, prompts: list[list[int]]) -> None:
        from array import array

        tree = PrefixTree()
        segments = [tree.insert(array("Q", prompt)) for prompt in prompts]
        for prompt, segment in zip(prompts, segments, strict=True):
            blocks = tree.blocks(segment)
            assert list(blocks) == prompt
            assert list(reversed(blocks)) == prompt[::-1]
            assert len(blocks) == len(prompt)
            assert list(blocks[:2]) == prompt[:2]
            path = tree.path(segment)
            for count in range(len(prompt) + 1):
                place = tree.place(path, count)
                if not count:
                    assert place == -1
                else:
                    assert tree.starts[path[place]] < count <= tree.ends[path[place]]
        assert len({tuple(p) for p in prompts} - {()}) <= len(tree)


def busy_trace(seed: int, count: int = 120) -> Trace:
    """Chats over few system prompts, as fast as four small engines can take."""
    rng = Random(seed)
    requests = []
    for number in range(count):
        length = rng.randrange(5)
        blocks = chained(length, rng.randrange(16))
        tokens = max(1, length * BLOCK + rng.randrange(24))
        requests.append(ask(0.4 * number, tokens, rng.randrange(8), blocks))
    return Trace("trace", BLOCK, tuple(requests))


def batching(**options: object) -> Setting:
    values = {"backends": 4, "capacity_tokens": 120, "batching": CONSTANTS} | options
    return Setting(**values)  # type: ignore[arg-type]


def second_share(count: int, **options: object) -> float:
    """Return what the second of four engines computes of all."""
    where = batching(prefill_rate=1 / CONSTANTS.prefill_s(1), **options)
    (outcome,), _ = Comparison(busy_trace(3, count), where).run(["expected_ttft"])
    tokens = outcome.figures.backend_prefill_tokens
    return tokens[1] / sum(tokens)


class TestFleet:
    @pytest.mark.parametrize("name", ["expected_ttft", "weighted_scores", "session"])
    @pytest.mark.parametrize(
        "grade", ["exact", "mirror", "mirror=2", "delay=2", "events-loss=0.3"]
    )
    def test_everybody_is_served_whatever_the_view(self, name: str, grade: str) -> None:
        where = batching(view=read_view(grade))
        (outcome,), oracles = Comparison(busy_trace(1), where).run([name])
        assert outcome.figures.requests == 120
        assert sum(outcome.figures.backend_requests) == 120
        assert outcome.figures.lost == 0
        assert [one.name for one in oracles] == ["oracle_pooled", "oracle_infinite"]
        assert oracles[1].figures.hit_ratio >= outcome.figures.hit_ratio

    def test_the_same_seed_gives_the_same_figures(self) -> None:
        runs = [
            Comparison(busy_trace(2), batching(seeds=2)).run(["expected_ttft"])
            for _ in range(2)
        ]
        assert runs[0] == runs[1]

    def test_a_slow_engine_gets_less(self) -> None:
        where = batching(slow={1: 3.0})
        (outcome,), _ = Comparison(busy_trace(3, 400), where).run(["expected_ttft"])
        tokens = outcome.figures.backend_prefill_tokens
        assert tokens[1] < 0.7 * (sum(tokens) - tokens[1]) / 3

    def test_what_was_learned_wrong_is_learned_anew(self) -> None:
        """One engine is believed four times as fast: held so, it gets more for good."""
        plain, wrong = {}, {1: 4.0}
        right, learned, held = (
            second_share(800, mislearned=late, misjudged=fixed)
            for late, fixed in ((plain, plain), (wrong, plain), (plain, wrong))
        )
        assert held > right + 0.05
        assert abs(learned - right) < (held - right) / 2
        assert second_share(30, mislearned=wrong) > second_share(30) + 0.02

    def test_what_a_dying_engine_had_goes_elsewhere_or_is_lost(self) -> None:
        where = batching(dies_at={0: 20.0})
        (outcome,), _ = Comparison(busy_trace(4), where).run(["round_robin"])
        figures = outcome.figures
        assert figures.requests + figures.lost == 120
        assert figures.lost > 0
        assert figures.backend_requests[0] < 0.75 * figures.backend_requests[1]

    def test_answers_of_one_token_have_no_time_per_token(self) -> None:
        trace = Trace("trace", BLOCK, (ask(0.0, 8, 1), ask(1.0, 8, 0)))
        (outcome,), _ = Comparison(trace, batching()).run(["random"])
        assert outcome.figures.tpot_mean_s == 0.0
        assert outcome.figures.e2e_mean_s == outcome.figures.ttft_mean_s

    def test_a_trace_of_one_block_size_is_indexed_once(self) -> None:
        trace = trace_of(ask(0.0, 512, 1))
        assert trace.indexed().indexed() is not trace
        assert trace.indexed().indexed().tree is not None
