"""Replay gives what the model says, worked out by hand and against naive ones."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.replay_rig import BLOCK, RATE, ask, setting, trace_of

from warmroute.policies.errors import PolicyError
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.policies.routing.base import Candidate, Choice, Policy, Query, build
from warmroute.proxy.ledger.tokens import TokenClasses
from warmroute.proxy.replay.belady import BeladyCache
from warmroute.proxy.replay.block_cache import BlockCache
from warmroute.proxy.replay.comparison import Comparison, Outcome
from warmroute.proxy.replay.figures import (
    Figures,
    half_width,
    mean_figures,
    percentile,
)
from warmroute.proxy.replay.fleets import build_policy
from warmroute.proxy.replay.pooled import infinite_cache, pooled_cache
from warmroute.proxy.replay.routed import RoutedFleet
from warmroute.proxy.replay.served import Served
from warmroute.proxy.replay.setting import Setting
from warmroute.proxy.replay.tally import Tally
from warmroute.proxy.replay.trace import Trace, TraceRequest
from warmroute.proxy.replay.view_grade import read_view
from warmroute.proxy.replay.what_if import fewest


def routed(name: str, where: Setting) -> RoutedFleet:
    return RoutedFleet(build_policy(name, 0), where, BLOCK)


def serve(fleet: RoutedFleet, *requests: TraceRequest) -> list[Served]:
    return [fleet.serve(request, request.time_s) for request in requests]


def replay(name: str, where: Setting, trace: Trace) -> Outcome:
    return Comparison(trace, where).run([name])[0][0]


class TestOneEngine:
    def test_prompts_wait_for_those_before_them(self) -> None:
        fleet = routed("round_robin", setting())
        served = serve(fleet, ask(0.0, 1000), ask(0.5, 1500), ask(10.0, 500))
        assert [one.ttft_s for one in served] == pytest.approx([1.0, 2.0, 0.5])
        assert [one.cached_tokens for one in served] == [0, 0, 0]

    def test_blocks_are_resident_from_the_dispatch_on(self) -> None:
        """The second prompt comes before the first one is computed, and hits."""
        fleet = routed("round_robin", setting())
        first, second = serve(fleet, ask(0.0, 1025, 1, 2), ask(0.0, 1025, 1, 2))
        assert (first.cached_tokens, second.cached_tokens) == (0, 1024)
        assert second.ttft_s == pytest.approx(1.025 + 0.001)

    def test_a_prompt_that_is_all_cached_has_its_last_block_computed(self) -> None:
        fleet = routed("round_robin", setting())
        served = serve(fleet, ask(0.0, 1024, 1, 2), ask(10.0, 1024, 1, 2))
        assert served[1].cached_tokens == 512
        assert served[1].ttft_s == pytest.approx(0.512)

    def test_only_leading_blocks_hit(self) -> None:
        fleet = routed("round_robin", setting())
        served = serve(fleet, ask(0.0, 1600, 1, 2, 3), ask(10.0, 1600, 1, 9, 3))
        assert served[1].cached_tokens == 512


class TestBlockCache:
    def test_the_oldest_block_goes_first_and_deep_ones_are_older(self) -> None:
        cache = BlockCache(BLOCK, 3 * BLOCK + 511)
        one, other = ask(0, 1025, 1, 2), ask(0, 1025, 3, 4)
        cache.admit(one)
        cache.admit(other)  # 2 1 4 3, oldest first: 2 goes
        assert cache.cached_tokens(one) == 512
        assert cache.cached_tokens(other) == 1024
        cache.admit(one)  # 1 4 3, then 2 and 1 are touched: 4 goes
        assert cache.cached_tokens(one) == 1024
        assert cache.cached_tokens(other) == 512
        assert len(cache) == 3

    def test_a_prompt_longer_than_the_cache_leaves_its_beginning(self) -> None:
        cache = BlockCache(BLOCK, 2 * BLOCK)
        cache.admit(ask(0, 2000, 1, 2, 3))
        assert cache.cached_tokens(ask(0, 2000, 1, 2, 3)) == 1024

    def test_less_than_a_block_holds_nothing(self) -> None:
        cache = BlockCache(BLOCK, BLOCK - 1)
        cache.admit(ask(0, 2000, 1, 2, 3))
        assert len(cache) == 0

    @given(
        st.lists(st.lists(st.integers(0, 8), max_size=5, unique=True), max_size=30),
        st.integers(0, 7),
    )
    def test_equals_a_list_in_order_of_use(
        self, prompts: list[list[int]], num_blocks: int
    ) -> None:
        cache, naive = BlockCache(BLOCK, num_blocks * BLOCK), list[int]()
        for blocks in prompts:
            request = ask(0, len(blocks) * BLOCK + 1, *blocks)
            matched = 0
            while matched < len(blocks) and blocks[matched] in naive:
                matched += 1
            assert cache.cached_tokens(request) == matched * BLOCK
            cache.admit(request)
            for block in reversed(blocks):
                naive = [one for one in naive if one != block] + [block]
                naive = naive[-num_blocks:] if num_blocks else []

    @given(
        st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=30),
        st.integers(1, 12),
    )
    def test_equals_the_prefix_index_of_the_proxy(
        self, chains: list[list[int]], num_blocks: int
    ) -> None:
        """On ids that stand for a whole prefix, the view would say the same."""
        index, cache = PrefixIndex(), BlockCache(BLOCK, num_blocks * BLOCK)
        holder = index.add_holder("a")
        index.set_capacity(holder, num_blocks * BLOCK)
        for stamp, chain in enumerate(chains, 1):
            ids = [
                int("1" + "".join(map(str, chain[: end + 1])))
                for end in range(len(chain))
            ]
            request = ask(0, len(ids) * BLOCK + 1, *ids)
            assert cache.cached_tokens(request) == index.match(ids).gpu[0] * BLOCK
            cache.admit(request)
            index.insert(holder, ids, BLOCK, stamp)


class TestRouting:
    def test_round_robin_begins_at_the_first_engine(self) -> None:
        served = serve(
            routed("round_robin", setting(3)), *(ask(at, 10) for at in range(4))
        )
        assert [one.backend for one in served] == [0, 1, 2, 0]

    def test_a_decode_counts_as_a_request_in_flight_and_slows_nobody(self) -> None:
        """The first decodes until 3.1 s, the second until 1.4 s."""
        fleet = routed("least_requests", setting(2))
        first, second, third = serve(
            fleet,
            ask(0.0, 100, output=100),
            ask(1.0, 100, output=10),
            ask(2.0, 100, output=1),
        )
        assert second.backend != first.backend
        assert third.backend == second.backend
        assert third.ttft_s == pytest.approx(0.1)

    def test_an_answer_ends_when_its_last_token_is_due(self) -> None:
        """At 3.1 s the first is gone, so both engines are empty for the last two."""
        fleet = routed("least_requests", setting(2))
        served = serve(
            fleet, ask(0.0, 100, output=100), ask(3.2, 100, output=9), ask(3.2, 100)
        )
        assert served[1].backend != served[2].backend

    def test_expected_ttft_goes_where_the_prompt_is_cached(self) -> None:
        fleet = routed("expected_ttft", setting(8))
        first, second = serve(fleet, ask(0.0, 2000, 1, 2, 3), ask(9.0, 2000, 1, 2, 3))
        assert second.backend == first.backend
        assert second.cached_tokens == 1536

    def test_expected_ttft_has_no_price_of_decode(self) -> None:
        policy = build_policy("expected_ttft", 0)
        assert (policy.stall_weight, policy.decode_weight) == (0.0, 0.0)  # type: ignore[attr-defined]

    @given(
        st.lists(
            st.tuples(st.integers(0, 150), st.integers(1, 3000), st.integers(0, 3)),
            min_size=1,
        ),
        st.integers(1, 3),
    )
    def test_waits_are_known_exactly(
        self, arrivals: list[tuple[int, int, int]], backends: int
    ) -> None:
        """What the policy prices as the wait is what the request then waits."""
        spy = SpyPolicy(build_policy("expected_ttft", 1))
        fleet = RoutedFleet(spy, setting(backends), BLOCK)
        now = 0.0
        for gap, tokens, family in arrivals:
            now += gap / 100
            blocks = [10 * family + at for at in range(tokens // BLOCK)]
            served = fleet.serve(ask(now, tokens, *blocks), now)
            waited_s = served.ttft_s - (tokens - served.cached_tokens) / RATE
            assert spy.wait_s == pytest.approx(waited_s, abs=1e-6)
            assert spy.rates == {RATE}

    def test_a_prompt_that_is_nearly_computed_leaves_the_wait_that_is_left(
        self,
    ) -> None:
        spy = SpyPolicy(build_policy("expected_ttft", 1))
        serve(RoutedFleet(spy, setting(), BLOCK), ask(0.0, 1000), ask(0.99, 5))
        assert spy.wait_s == pytest.approx(0.01)

    def test_the_load_of_the_pool_is_known_from_the_first_request_on(self) -> None:
        spy = SpyPolicy(build_policy("expected_ttft", 1))
        serve(RoutedFleet(spy, setting(), BLOCK), ask(0.0, 600), ask(0.5, 5))
        assert spy.rho == pytest.approx(600 / (60 * RATE))

    def test_what_ends_when_a_request_comes_is_over(self) -> None:
        spy = SpyPolicy(build_policy("expected_ttft", 1))
        serve(RoutedFleet(spy, setting(), BLOCK), ask(0.0, 1000), ask(1.0, 5))
        assert spy.requests == 0


class SpyPolicy:
    """Stands in for a policy and keeps what the real one was told and expected."""

    name = "spy"

    def __init__(self, inner: Policy) -> None:
        self.inner = inner
        self.wait_s = self.rho = 0.0
        self.rates: set[float] = set()
        self.requests = 0

    def choose(self, query: Query, candidates: Sequence[Candidate]) -> Choice:
        self.rho = query.rho
        self.rates = {one.rate for one in candidates}
        self.requests = sum(one.requests for one in candidates)
        choice = self.inner.choose(query, candidates)
        assert choice.costs is not None
        self.wait_s = choice.costs[choice.index][0]
        return choice


class TestOracles:
    def test_the_pooled_queue_goes_to_the_engine_that_is_free_first(self) -> None:
        fleet = pooled_cache(setting(2), BLOCK)
        times = [
            fleet.serve(one, one.time_s).ttft_s
            for one in (ask(0.0, 1000), ask(0.0, 3000), ask(0.5, 1000))
        ]
        assert times == pytest.approx([1.0, 3.0, 1.5])

    def test_the_pooled_cache_is_as_large_as_all_together(self) -> None:
        fleet = pooled_cache(setting(2, blocks=1), BLOCK)
        prompt = ask(0.0, 2000, 1, 2, 3)
        fleet.serve(prompt, 0.0)
        assert fleet.serve(prompt, 9.0).cached_tokens == 1024

    def test_the_infinite_cache_loses_nothing(self) -> None:
        fleet = infinite_cache(setting(2, blocks=1), BLOCK)
        prompt = ask(0.0, 2000, 1, 2, 3)
        fleet.serve(prompt, 0.0)
        assert fleet.serve(prompt, 9.0).cached_tokens == 1536


class TestFigures:
    def test_percentiles_are_interpolated(self) -> None:
        ordered = [1.0, 2.0, 3.0, 4.0]
        shares = [percentile(ordered, share) for share in (0.0, 0.5, 0.9, 1.0)]
        assert shares == pytest.approx([1.0, 2.5, 3.7, 4.0])
        assert percentile([7.0], 0.99) == 7.0

    def test_imbalance_is_the_mean_over_windows(self) -> None:
        """300 and 100 in the first ten seconds are 1.5; 50 and 0 in the next are 2."""
        trace = trace_of(ask(0.0, 300), ask(1.0, 100), ask(12.0, 50))
        figures = replay("round_robin", setting(2), trace).figures
        assert figures.imbalance == pytest.approx(1.75)
        assert figures.backend_requests == (2, 1)
        assert figures.backend_prefill_tokens == (350, 100)

    def test_a_prompt_that_is_cached_elsewhere_is_paid_twice(self) -> None:
        trace = trace_of(ask(0.0, 1025, 1, 2), ask(9.0, 1025, 1, 2))
        figures = replay("round_robin", setting(2), trace).figures
        assert figures.paid_twice_ratio == pytest.approx(1024 / 2050)
        assert figures.hit_ratio == 0.0
        second = serve(routed("round_robin", setting(2)), *trace.requests)[1]
        assert TokenClasses(*second.classes) == TokenClasses(0, 1, 0, 1024, 0)

    def test_a_prompt_that_was_evicted_is_paid_twice(self) -> None:
        trace = trace_of(ask(0.0, 1024, 1, 2), ask(9.0, 1024, 1, 2))
        figures = replay("round_robin", setting(1, blocks=0), trace).figures
        assert figures.paid_twice_ratio == pytest.approx(512 / 2048)

    def test_goodput_is_the_share_within_two_seconds(self) -> None:
        trace = trace_of(ask(0.0, 2000), ask(9.0, 2001), ask(19.0, 1))
        figures = replay("round_robin", setting(), trace).figures
        assert figures.goodput == pytest.approx(2 / 3)
        assert (figures.tpot_mean_s, figures.tpot_p99_s) == pytest.approx((0.03, 0.03))

    def test_seeds_are_averaged_with_an_interval(self) -> None:
        assert half_width([1.0]) is None
        assert half_width([1.0, 3.0]) == pytest.approx(12.706 * 2**0.5 / 2**0.5)
        assert half_width([0.0, 2.0] * 50) == pytest.approx(1.96 * 1.00504 / 10, 1e-3)

    def test_means_are_taken_of_every_figure(self) -> None:
        runs = [
            replay("random", setting(2, jitter_s=jitter), BUSY).figures
            for jitter in (0.0, 5.0)
        ]
        mean = mean_figures(runs)
        for name in set(Figures.__slots__) - {"windows"}:
            low, high, between = (getattr(one, name) for one in (*runs, mean))
            if isinstance(between, tuple):
                low, high, between = sum(low), sum(high), sum(between)
            assert between == pytest.approx((low + high) / 2)
        assert mean.windows == runs[0].windows
        assert mean_figures(runs[:1]) is runs[0]


PROMPTS = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.integers(1, 2600),
        st.integers(0, 2),
        st.integers(0, 300),
    ),
    min_size=1,
    max_size=40,
)
ORACLES = ("oracle_pooled", "oracle_belady", "oracle_infinite")
POLICIES = ("round_robin", "random", "least_requests", "session", "expected_ttft")


def chats(prompts: list[tuple[int, int, int, int]]) -> Trace:
    """Make prompts of a few families; blocks of a family are the same."""
    now, requests = 0.0, []
    for gap, tokens, family, output in prompts:
        now += gap / 10
        blocks = [10 * family + at for at in range(tokens // BLOCK)]
        requests.append(ask(now, tokens, *blocks, output=output))
    return trace_of(*requests)


BUSY = chats([(3, 700 + 300 * (at % 6), at % 3, at) for at in range(40)])


class TestWhole:
    @given(PROMPTS, st.sampled_from(POLICIES), st.integers(1, 3), st.integers(0, 6))
    @settings(max_examples=60, deadline=None)
    def test_every_prompt_token_is_computed_or_cached(
        self, prompts: list[tuple[int, int, int, int]], name: str, n: int, blocks: int
    ) -> None:
        trace = chats(prompts)
        routed, oracles = Comparison(trace, setting(n, blocks)).run([name])
        for outcome in (*routed, *oracles):
            figures, total = outcome.figures, trace.prompt_tokens
            cached = round(figures.hit_ratio * total)
            assert sum(figures.backend_prefill_tokens) + cached == total
            assert sum(figures.backend_requests) == len(prompts)
            assert 1 <= figures.imbalance <= n + 1e-9
        assert oracles[1].figures.hit_ratio >= oracles[0].figures.hit_ratio
        assert oracles[1].figures.hit_ratio >= routed[0].figures.hit_ratio

    @pytest.mark.parametrize("name", POLICIES)
    def test_the_same_seeds_give_the_same_figures(self, name: str) -> None:
        where = setting(3, jitter_s=2.0, seeds=2)
        assert replay(name, where, BUSY) == replay(name, where, BUSY)

    def test_another_seed_gives_other_arrivals_in_time_order(self) -> None:
        runs = [BUSY.arrivals(2.0, 3.0, Random(seed)) for seed in (1, 2)]
        assert runs[0] != runs[1]
        for run in runs:
            assert [at for at, _ in run] == sorted(at for at, _ in run)
            assert all(0 <= 2 * at - one.time_s < 3.0 for at, one in run)

    def test_speed_divides_the_gaps(self) -> None:
        """Twice as fast, the second prompt comes at 0.5 s and waits as long."""
        trace = trace_of(ask(0.0, 1000), ask(1.0, 1000))
        slow = replay("round_robin", setting(), trace).figures
        fast = replay("round_robin", setting(speed=2.0), trace).figures
        assert slow.ttft_mean_s == pytest.approx(1.0)
        assert fast.ttft_mean_s == pytest.approx((1.0 + 1.5) / 2)

    def test_all_policies_get_the_same_arrivals(self) -> None:
        """One engine leaves no choice, so all figures are equal."""
        where = setting(1, jitter_s=3.0, seeds=2)
        outcomes, _ = Comparison(BUSY, where).run(["random", "expected_ttft"])
        assert outcomes[0].figures == outcomes[1].figures

    def test_progress_counts_all_that_is_replayed(self) -> None:
        told: list[tuple[int, int, str]] = []
        where = setting(2, seeds=2)
        comparison = Comparison(BUSY, where, lambda *step: told.append(step))
        comparison.run(["random"])
        assert told == [
            (40 * run, 320, name)
            for run, name in enumerate(
                name for name in ("random", *ORACLES) for _ in range(2)
            )
        ]


class TestBuild:
    def test_draws_come_from_the_generator_that_is_given(self) -> None:
        candidates = [Candidate(name) for name in "abcdefgh"]
        drawn = [
            [policy.choose(Query(1, 0.0), candidates).index for _ in range(20)]
            for policy in (build("random", None, Random(7)) for _ in range(2))
        ]
        assert drawn[0] == drawn[1]

    def test_a_policy_without_a_generator_is_built_all_the_same(self) -> None:
        assert build("round_robin", None, Random(7)).name == "round_robin"

    def test_an_unknown_policy_is_named(self) -> None:
        with pytest.raises(PolicyError, match="unknown policy 'nope'"):
            build_policy("nope", 0)


def test_objects_say_what_they_are() -> None:
    fleet, where = routed("random", setting(2)), setting(2)
    assert repr(fleet) == "<RoutedFleet random, 2 engines>"
    assert "2 engines, <BlockCache [Blocks: 0" in repr(pooled_cache(where, BLOCK))
    assert repr(Tally(2)).startswith("<Tally 0 requests")
    assert repr(Comparison(BUSY, where)).startswith("<Comparison on trace, Setting(")


class TestViews:
    @pytest.mark.parametrize("grade", ["mirror", "delay=0", "events-loss=0"])
    def test_a_view_that_misses_nothing_is_as_good_as_the_exact_one(
        self, grade: str
    ) -> None:
        exact = replay("expected_ttft", setting(4), BUSY)
        known = replay("expected_ttft", setting(4, view=read_view(grade)), BUSY)
        assert known.figures == exact.figures

    def test_what_is_promised_in_vain_is_unpredicted(self) -> None:
        """A mirror twice as large believes in blocks that have gone."""
        where = setting(1, blocks=2, view=read_view("mirror=2"))
        fleet = routed("round_robin", where)
        _, _, third = serve(
            fleet,
            ask(0.0, 1025, 1, 2),
            ask(9.0, 1025, 3, 4),
            ask(20.0, 1025, 1, 2),
        )
        assert third.cached_tokens == 0
        assert TokenClasses(*third.classes).unpredicted == 1024

    def test_late_events_are_made_up_for_by_what_was_sent(self) -> None:
        where = setting(2, view=read_view("delay=60"))
        fleet = routed("expected_ttft", where)
        first, again = serve(fleet, ask(0.0, 1025, 1, 2), ask(9.0, 1025, 1, 2))
        assert again.backend == first.backend
        assert again.cached_tokens == 1024

    def test_a_grade_says_what_it_is(self) -> None:
        for grade in ("exact", "mirror=2", "delay=3", "events-loss=0.1"):
            assert str(read_view(grade)) == grade


class TestBelady:
    def test_it_keeps_what_comes_again_soonest(self) -> None:
        """Two blocks fit; 3 is used once and 1 before 2, so 3 is never taken in."""
        asked = [ask(at, 513, block) for at, block in enumerate((1, 2, 3, 1, 2))]
        cache = BeladyCache(BLOCK, 2 * BLOCK, asked)
        hits = []
        for request in asked:
            hits.append(cache.cached_tokens(request))
            cache.admit(request)
        assert hits == [0, 0, 0, 512, 512]

    @settings(deadline=None)
    @given(
        st.lists(st.lists(st.integers(0, 1), max_size=4), max_size=25),
        st.integers(0, 6),
    )
    def test_it_hits_no_less_than_the_least_recently_used(
        self, chains: list[list[int]], num_blocks: int
    ) -> None:
        asked = []
        for chain in chains:
            ids = [
                int("1" + "".join(map(str, chain[: end + 1])))
                for end in range(len(chain))
            ]
            asked.append(ask(0, len(ids) * BLOCK + 1, *ids))
        capacity = num_blocks * BLOCK
        totals = []
        for cache in (
            BeladyCache(BLOCK, capacity, asked),
            BlockCache(BLOCK, capacity),
        ):
            total = 0
            for request in asked:
                total += cache.cached_tokens(request)
                cache.admit(request)
            totals.append(total)
        assert totals[0] >= totals[1]


@given(st.integers(1, 600), st.integers(1, 512))
def test_the_fewest_that_reach_are_found(least: int, most: int) -> None:
    asked: list[int] = []

    def reach(count: int) -> float:
        asked.append(count)
        return 1.0 if count >= least else 0.5

    found, reached = fewest(reach, 0.9, most)
    assert found == (least if least <= most else None)
    assert reached == (1.0 if least <= most else 0.5)
    assert len(asked) <= 22
