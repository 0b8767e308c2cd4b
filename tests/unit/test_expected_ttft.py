"""The default policy prices as documented, and spreads load without a cliff."""

from collections import Counter
from collections.abc import Sequence
from math import sqrt
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.policy_rig import chosen, fleet

from warmroute.policies.routing.base import Candidate, Cost, Costs, Query
from warmroute.policies.routing.expected_ttft import ExpectedTtft
from warmroute.policies.routing.load import FleetLoad
from warmroute.policies.routing.rates import SpeedClass

QUERY = Query(1000, 100.0)


@st.composite
def candidate(draw: st.DrawFn, speed: SpeedClass) -> Candidate:
    head = draw(st.integers(0, 50_000))
    return Candidate(
        "x",
        speed,
        matched_tokens=draw(st.integers(0, 20_000)),
        requests=draw(st.integers(0, 300)),
        decodes=draw(st.integers(0, 300)),
        prefill_tokens=head + draw(st.integers(0, 500_000)) if head else 0,
        context_tokens=draw(st.integers(0, 3_000_000)),
        queued_tokens=draw(st.integers(0, 100_000)),
        head_tokens=head,
        head_since=draw(st.floats(0, 100)),
        last_first_token=draw(st.floats(0, 100)),
        rate=draw(st.floats(50, 100_000)),
    )


@st.composite
def situations(draw: st.DrawFn) -> tuple[Query, list[Candidate]]:
    speeds = [SpeedClass("one"), SpeedClass("two")]
    speeds[1].line.scale = draw(st.floats(0.1, 20))
    speeds[1].rate = draw(st.floats(50, 100_000))
    query = Query(
        draw(st.integers(0, 20_000)),
        100.0,
        None,
        draw(st.floats(0, 3)),
        draw(st.floats(1, 4000)),
        depth_tokens=draw(st.none() | st.floats(1, 200_000)),
    )
    count = draw(st.integers(1, 6))
    picks = [speeds[draw(st.integers(0, 1))] for _ in range(count)]
    return query, [draw(candidate(speed)) for speed in picks]


def formula(query: Query, one: Candidate) -> tuple[float, float, float]:
    """Compute wait, miss and decode word for word from docs/routing.md."""
    since = max(one.last_first_token, one.head_since)
    progress = min(0.95 * one.head_tokens, one.rate * (query.now - since))
    rate = sqrt(one.rate * one.speed.rate)
    wait = max(0, one.prefill_tokens - progress) / rate + one.queued_tokens / rate
    alpha = 20.0 if query.rho >= 1 else min(20.0, 1 / (1 - query.rho))
    uncached = max(0, query.prompt_tokens - one.matched_tokens)
    each = 1.0
    if query.depth_tokens is not None and uncached:
        depth = one.matched_tokens + uncached / 2
        each = (30_000 + depth) / (30_000 + query.depth_tokens)
    work = each * uncached
    miss = work / rate + (alpha - 1 + 0.06 * one.decodes) * work / one.speed.rate
    tokens = one.context_tokens + query.prompt_tokens
    itl = one.speed.line.scale * (6.5e-3 + 25e-6 * (one.requests + 1) + 46e-9 * tokens)
    return wait, miss, 0.1 * query.output_tokens * itl


class TestCosts:
    @given(st.lists(st.tuples(*[st.floats(0, 9)] * 4), max_size=6))
    def test_reads_like_the_list_of_its_tuples(self, tuples: list[Cost]) -> None:
        costs = Costs([number for cost in tuples for number in cost])
        assert list(costs) == tuples
        assert len(costs) == len(tuples)
        assert costs[1:] == tuples[1:]
        assert [costs[at] for at in range(-len(tuples), 0)] == tuples
        assert repr(costs) == f"<Costs {tuples}>"
        with pytest.raises(IndexError):
            costs[len(tuples)]


class TestExpectedTtftCost:
    @given(situations())
    def test_costs_are_those_of_the_formula(
        self, situation: tuple[Query, list[Candidate]]
    ) -> None:
        query, candidates = situation
        costs = ExpectedTtft().choose(query, candidates).costs
        assert costs is not None
        for cost, one in zip(costs, candidates, strict=True):
            wait, miss, decode = formula(query, one)
            assert cost[:3] == pytest.approx((wait, miss, decode), abs=1e-9)
            assert cost[3] == sum(cost[:3])

    @given(situations())
    def test_without_tolerance_the_choice_is_a_least_cost(
        self, situation: tuple[Query, list[Candidate]]
    ) -> None:
        choice = ExpectedTtft(tie_tolerance=0.0).choose(*situation)
        assert choice.costs is not None
        assert choice.costs[choice.index][3] == min(cost[3] for cost in choice.costs)

    @given(situations())
    def test_the_tolerance_costs_at_most_its_share_of_wait_and_miss(
        self, situation: tuple[Query, list[Candidate]]
    ) -> None:
        choice = ExpectedTtft(tie_tolerance=0.1).choose(*situation)
        assert choice.costs is not None
        wait, miss, _, least = min(choice.costs, key=lambda cost: cost[3])
        assert choice.costs[choice.index][3] <= least + 0.1 * (wait + miss)

    @given(situations(), st.integers(0, 50_000))
    def test_more_backlog_never_makes_a_candidate_cheaper(
        self, situation: tuple[Query, list[Candidate]], more: int
    ) -> None:
        before = self.total(situation)
        situation[1][0].prefill_tokens += more
        assert self.total(situation) >= before

    @given(situations(), st.integers(0, 50_000))
    def test_more_match_never_makes_a_candidate_dearer(
        self, situation: tuple[Query, list[Candidate]], more: int
    ) -> None:
        before = self.total(situation)
        situation[1][0].matched_tokens += more
        assert self.total(situation) <= before

    @given(situations(), st.integers(0, 100))
    def test_more_requests_never_make_a_candidate_cheaper(
        self, situation: tuple[Query, list[Candidate]], more: int
    ) -> None:
        before = self.total(situation)
        situation[1][0].requests += more
        situation[1][0].decodes += more
        assert self.total(situation) >= before

    def total(self, situation: tuple[Query, list[Candidate]]) -> float:
        costs = ExpectedTtft().choose(*situation).costs
        assert costs is not None
        return costs[0][3]

    def test_a_full_pool_caps_the_price_of_a_miss(self) -> None:
        one = Candidate("a")
        for rho in (0.95, 1.0, 7.5):
            costs = ExpectedTtft().choose(Query(8000, 0.0, None, rho), [one]).costs
            assert costs is not None
            assert costs[0][1] == pytest.approx(20.0)


def equals(
    costs: Sequence[Cost], candidates: Sequence[Candidate], tolerance: float
) -> set[int]:
    """List who may be drawn, word for word from docs/routing.md."""
    best = min(range(len(costs)), key=lambda index: costs[index][3])
    wait, miss, _, least = costs[best]

    def state(index: int) -> tuple[int, int]:
        return candidates[index].matched_tokens, candidates[index].requests

    return {
        index
        for index, cost in enumerate(costs)
        if cost[3] == least
        or (
            state(index) == state(best) and cost[3] <= least + tolerance * (wait + miss)
        )
    }


class TestExpectedTtftChoice:
    @given(
        st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=6),
        st.sampled_from([0.0, 0.1, 1.0]),
    )
    def test_draws_from_the_equal_ones_and_names_the_reason(
        self, states: list[tuple[int, int, int]], tolerance: float
    ) -> None:
        candidates = [
            Candidate("x", matched_tokens=400 * m, requests=r, rate=8000.0 + 500 * v)
            for m, r, v in states
        ]
        policy = ExpectedTtft(tie_tolerance=tolerance, rng=Random(1))
        choices = [policy.choose(QUERY, candidates) for _ in range(100)]
        costs = choices[0].costs
        assert costs is not None
        drawn = {choice.index for choice in choices}
        assert drawn == equals(costs, candidates, tolerance)
        longest = max(one.matched_tokens for one in candidates)
        for choice in choices:
            matched = candidates[choice.index].matched_tokens
            is_prefix = 0 < matched == longest
            assert choice.reason == ("prefix" if is_prefix else "load")

    def test_a_warm_backend_wins_by_its_prefix(self) -> None:
        candidates = fleet(0, 0, 0)
        candidates[1].matched_tokens = 800
        choice = ExpectedTtft().choose(QUERY, candidates)
        assert (choice.index, choice.reason) == (1, "prefix")

    def test_a_small_match_wins_among_equals(self) -> None:
        candidates = fleet(*[0] * 8)
        candidates[5].matched_tokens = 16
        for _ in range(50):
            assert ExpectedTtft().choose(QUERY, candidates).index == 5

    def test_a_busy_warm_backend_loses_to_an_idle_cold_one(self) -> None:
        candidates = fleet(1, 0)
        candidates[0].matched_tokens = 800
        candidates[0].prefill_tokens = candidates[0].head_tokens = 400_000
        candidates[0].head_since = QUERY.now
        choice = ExpectedTtft().choose(QUERY, candidates)
        assert (choice.index, choice.reason) == (1, "load")

    def test_a_second_best_match_is_a_choice_by_load(self) -> None:
        candidates = fleet(1, 0)
        candidates[0].matched_tokens = 800
        candidates[0].queued_tokens = 400_000
        candidates[1].matched_tokens = 400
        choice = ExpectedTtft().choose(QUERY, candidates)
        assert (choice.index, choice.reason) == (1, "load")

    def test_the_engines_own_queue_counts(self) -> None:
        candidates = fleet(0, 0)
        candidates[0].queued_tokens = 1000
        assert chosen(ExpectedTtft(), candidates, 50, QUERY) == {"b": 50}

    def test_equal_candidates_are_drawn_evenly(self) -> None:
        drawn = chosen(ExpectedTtft(rng=Random(1)), fleet(*[0] * 8), 4000, QUERY)
        assert set(drawn) == set("abcdefgh")
        assert all(400 < count < 600 for count in drawn.values())

    def test_an_empty_prompt_is_spread_by_load(self) -> None:
        drawn = chosen(ExpectedTtft(rng=Random(1)), fleet(1, 0, 0), 300, Query(0, 0.0))
        assert set(drawn) == {"b", "c"}

    def test_a_prompt_of_a_million_tokens_is_routed(self) -> None:
        choice = ExpectedTtft().choose(Query(1_000_000, 0.0, None, 9.9), fleet(3, 0))
        assert choice.index == 1

    def test_a_much_faster_backend_is_not_a_tie(self) -> None:
        candidates = fleet(0, 0)
        candidates[1].rate *= 1.2
        assert chosen(ExpectedTtft(), candidates, 50, QUERY) == {"b": 50}


class TestExpectedTtftUnderLoad:
    """The policy and the load together, in the loop that the router runs."""

    def fleet(self, count: int) -> tuple[FleetLoad, list[Candidate]]:
        load = FleetLoad()
        return load, [load.add(f"b{i}", "m|vllm|gpu") for i in range(count)]

    def test_a_burst_of_misses_takes_one_backend_each(self) -> None:
        load, candidates = self.fleet(100)
        policy = ExpectedTtft(rng=Random(1))
        for _ in range(100):
            choice = policy.choose(load.query(2000, 5.0), candidates)
            load.reserve(candidates[choice.index], 2000, 2000, 5.0)
        assert [one.requests for one in candidates] == [1] * 100

    def test_misses_at_low_load_use_all_backends_in_spite_of_noisy_speeds(
        self,
    ) -> None:
        load, candidates = self.fleet(8)
        rng = Random(3)
        policy = ExpectedTtft(rng=rng)
        used: Counter[str] = Counter()
        for turn in range(1600):
            now = turn * 3.0
            choice = policy.choose(load.query(4000, now), candidates)
            backend = candidates[choice.index]
            used[backend.name] += 1
            reservation = load.reserve(backend, 4000, 4000, now)
            reservation.first_token(now + 4000 / 9000 * rng.gauss(1.0, 0.08))
            reservation.release(now + 2.5, 100)
        assert len(used) == 8
        assert min(used.values()) > 50
        assert max(used.values()) < 500

    def test_a_pile_up_on_a_warm_prefix_spills_over_without_a_cliff(self) -> None:
        load, candidates = self.fleet(8)
        policy = ExpectedTtft(rng=Random(1))
        warm: list[bool] = []
        for _ in range(400):
            for one in candidates:
                one.matched_tokens = 0
            candidates[0].matched_tokens = 3200
            choice = policy.choose(load.query(4000, 5.0), candidates)
            backend = candidates[choice.index]
            load.reserve(backend, 4000, 4000 - backend.matched_tokens, 5.0)
            warm.append(choice.index == 0)
        shares = [sum(warm[i : i + 40]) / 40 for i in range(0, 400, 40)]
        assert warm[:4] == [True] * 4
        assert all(0.25 < share < 0.75 for share in shares[1:])
        backlogs = [one.prefill_tokens for one in candidates[1:]]
        assert max(backlogs) - min(backlogs) <= 4000

    def test_every_backend_drains_the_burst_at_about_the_same_time(self) -> None:
        load, candidates = self.fleet(4)
        candidates[2].matched_tokens = 6000
        policy = ExpectedTtft(rng=Random(1))
        for _ in range(200):
            choice = policy.choose(load.query(8000, 5.0), candidates)
            backend = candidates[choice.index]
            load.reserve(backend, 8000, 8000 - backend.matched_tokens, 5.0)
        seconds = [one.prefill_tokens / one.rate for one in candidates]
        assert max(seconds) - min(seconds) < 0.4 * max(seconds)

    @pytest.mark.parametrize("held", [2.0, 0.5])
    def test_a_rate_held_wrong_makes_no_pile_up(self, held: float) -> None:
        load, candidates = self.fleet(8)
        policy = ExpectedTtft(rng=Random(1))
        for _ in range(400):
            query = load.query(2000, 5.0)
            query.rho = 0.95
            candidates[0].rate = held * candidates[0].speed.rate
            choice = policy.choose(query, candidates)
            load.reserve(candidates[choice.index], 2000, 2000, 5.0)
        wrong, *right = (one.prefill_tokens for one in candidates)
        assert max(right) / 1.5 < wrong < 1.5 * max(right)
