"""Policies that balance tokens, hash prefixes, or follow others' published rules."""

from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from math import sqrt
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.policies.errors import PolicyError
from warmroute.policies.routing.base import Candidate, Choice, Policy, Query, build
from warmroute.policies.routing.cache_threshold import CacheThreshold
from warmroute.policies.routing.explore_exploit import ExploreExploit
from warmroute.policies.routing.least_tokens import LeastTokens
from warmroute.policies.routing.overlap_cost import OverlapCost
from warmroute.policies.routing.prefix_hash import PrefixHash
from warmroute.policies.routing.pricing import backlog_tokens, price
from warmroute.policies.routing.rates import SpeedClass
from warmroute.policies.routing.weighted_scores import WeightedScores
from warmroute.policies.routing.window import SentWindow

QUERY = Query(1000, 100.0)
POLICIES: dict[str, Callable[[Random], Policy]] = {
    "cache_threshold": lambda rng: CacheThreshold(rng=rng),
    "explore_exploit": lambda rng: ExploreExploit(rng=rng),
    "least_tokens": lambda rng: LeastTokens(rng=rng),
    "least_tokens, blind": lambda rng: LeastTokens(own=False, rng=rng),
    "overlap_cost": lambda rng: OverlapCost(rng=rng),
    "overlap_cost, lmetric": lambda rng: OverlapCost(form="lmetric", rng=rng),
    "overlap_cost, drawn": lambda rng: OverlapCost(temperature=0.5, rng=rng),
    "prefix_hash": lambda rng: PrefixHash(rng=rng),
    "weighted_scores": lambda rng: WeightedScores(rng=rng),
}


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    """Make fleets in any state, likely or not."""
    count = st.integers(0, 200_000)
    few = st.integers(0, 300)
    fleet = []
    for place in range(draw(st.integers(1, 6))):
        requests = draw(few)
        fleet.append(
            Candidate(
                f"backend-{place}",
                matched_tokens=draw(count),
                requests=requests,
                decodes=draw(st.integers(0, requests)),
                prefill_tokens=draw(count),
                context_tokens=draw(count),
                queued_tokens=draw(count),
                head_tokens=draw(count),
                head_since=draw(st.floats(0, 1000)),
                last_first_token=draw(st.floats(0, 1000)),
                rate=draw(st.floats(1e-3, 1e6)),
                kv_usage=draw(st.none() | st.floats(0, 1)),
            )
        )
    return fleet


QUERIES = st.builds(
    Query,
    prompt_tokens=st.integers(0, 200_000),
    now=st.floats(0, 1000),
    session=st.none() | st.text(max_size=8),
    rho=st.floats(0, 3),
    output_tokens=st.floats(0, 10_000),
    blocks=st.lists(st.integers(0, 2**64 - 1), max_size=5),
    block_tokens=st.floats(0, 1000),
)


def shares(
    policy: Policy, fleet: Sequence[Candidate], times: int = 400
) -> Counter[str]:
    return Counter(fleet[policy.choose(QUERY, fleet).index].name for _ in range(times))


class TestAll:
    @pytest.mark.parametrize("name", POLICIES)
    @given(fleet=candidates(), queries=st.lists(QUERIES, min_size=1, max_size=4))
    def test_any_state_has_a_valid_choice_that_changes_nothing(
        self, name: str, fleet: list[Candidate], queries: list[Query]
    ) -> None:
        policy = POLICIES[name](Random(1))
        before = repr(fleet), deepcopy(queries)
        for query in queries:
            choice = policy.choose(query, fleet)
            assert 0 <= choice.index < len(fleet)
            assert choice.reason in ("prefix", "load", "hash")
        assert (repr(fleet), queries) == before

    @pytest.mark.parametrize(
        "name", [name for name in POLICIES if "explore" not in name]
    )
    def test_equals_are_drawn_evenly(self, name: str) -> None:
        fleet = [Candidate(letter) for letter in "abc"]
        drawn = shares(POLICIES[name](Random(1)), fleet)
        assert set(drawn) == {"a", "b", "c"}
        assert min(drawn.values()) > 90

    @pytest.mark.parametrize("name", [name for name in POLICIES if "hash" not in name])
    @given(fleet=candidates(), query=QUERIES, seed=st.integers(0, 3))
    def test_the_same_seed_chooses_the_same(
        self, name: str, fleet: list[Candidate], query: Query, seed: int
    ) -> None:
        first, second = (POLICIES[name](Random(seed)) for _ in range(2))
        assert first.choose(query, fleet) == second.choose(query, fleet)


class TestLeastTokens:
    def test_the_least_prefill_before_it_wins(self) -> None:
        fleet = [
            Candidate("a", requests=1, prefill_tokens=900),
            Candidate("b", requests=9, prefill_tokens=300, queued_tokens=500),
        ]
        assert LeastTokens(own=False).choose(QUERY, fleet) == Choice(1, "load")

    def test_a_match_counts_only_with_own(self) -> None:
        fleet = [
            Candidate("a", prefill_tokens=500, matched_tokens=640),
            Candidate("b", prefill_tokens=100),
        ]
        assert LeastTokens(own=True).choose(QUERY, fleet).index == 0
        assert LeastTokens(own=False).choose(QUERY, fleet).index == 1

    def test_what_the_oldest_request_has_got_done_counts_no_more(self) -> None:
        old = Candidate("a", prefill_tokens=1000, head_tokens=1000, head_since=99.0)
        old.rate = 900.0
        fleet = [old, Candidate("b", prefill_tokens=200, head_since=100.0)]
        assert LeastTokens().choose(QUERY, fleet).index == 0

    @given(fleet=candidates(), query=QUERIES)
    def test_the_backlog_is_the_one_that_is_priced(
        self, fleet: list[Candidate], query: Query
    ) -> None:
        if any(query.now < max(c.head_since, c.last_first_token) for c in fleet):
            query.now = 1000.0
        flat, _, _ = price(query, fleet, 0.0, 0.0, 1.0)
        for one, wait in zip(fleet, flat[::4], strict=True):
            rate = sqrt(one.rate * one.speed.rate)
            assert backlog_tokens(one, query.now) / rate == pytest.approx(wait)


class TestPrefixHash:
    def home(
        self, blocks: Sequence[int], fleet: Sequence[Candidate], **given: int
    ) -> str:
        query = Query(5000, 0.0, blocks=blocks, block_tokens=given.pop("size", 512))
        return fleet[PrefixHash(**given).choose(query, fleet).index].name

    def test_the_first_tokens_decide_and_what_follows_does_not(self) -> None:
        fleet = [Candidate(letter) for letter in "abcdefgh"]
        for key in range(100):
            home = self.home([key, key + 1000], fleet)
            assert home == self.home([key, key + 1000, 7, 8], fleet[::-1])
        homes = {self.home([1, key], fleet) for key in range(100)}
        assert len(homes) == 8

    def test_prefix_tokens_are_counted_in_whole_blocks_at_least_one(self) -> None:
        fleet = [Candidate(letter) for letter in "abcdefgh"]
        homes = [self.home([key], fleet) for key in range(40)]
        for tokens, size in ((1, 512), (512, 512), (1023, 512), (31, 16)):
            seen = [
                self.home([key, 1, 2], fleet, prefix_tokens=tokens, size=size)
                for key in range(40)
            ]
            assert seen == homes
        second = [
            self.home([9, key, 2], fleet, prefix_tokens=1024) for key in range(40)
        ]
        assert second == homes

    def test_a_short_prompt_is_known_by_its_last_full_block(self) -> None:
        fleet = [Candidate(letter) for letter in "abcdefgh"]
        assert len({self.home([key], fleet) for key in range(100)}) == 8

    def test_without_a_full_block_the_fewest_requests_win(self) -> None:
        fleet = [Candidate("a", requests=1), Candidate("b")]
        assert PrefixHash().choose(QUERY, fleet) == Choice(1, "load")

    def test_a_backend_that_leaves_moves_only_its_own(self) -> None:
        fleet = [Candidate(letter) for letter in "abcdefgh"]
        for key in range(200):
            home = self.home([key], fleet)
            if home != "c":
                assert self.home([key], [c for c in fleet if c.name != "c"]) == home

    @pytest.mark.parametrize("bound", [1.0, 1.25, 2.0])
    def test_one_hot_prefix_fills_nobody_beyond_the_bound(self, bound: float) -> None:
        fleet = [Candidate(letter) for letter in "abcdefgh"]
        policy = PrefixHash(bound=bound)
        query = Query(5000, 0.0, blocks=[1], block_tokens=512.0)
        reasons = Counter[str]()
        for _ in range(800):
            choice = policy.choose(query, fleet)
            fleet[choice.index].requests += 1
            reasons[choice.reason] += 1
        assert max(one.requests for one in fleet) <= bound * 100
        assert set(reasons) == {"hash", "load"}


class TestCacheThreshold:
    def test_a_match_of_exactly_the_threshold_is_not_followed(self) -> None:
        for matched, index, reason in ((300, 1, "load"), (301, 0, "prefix")):
            fleet = [Candidate("a", matched_tokens=matched, requests=3), Candidate("b")]
            assert CacheThreshold().choose(QUERY, fleet) == Choice(index, reason)

    @pytest.mark.parametrize(
        ("busy", "idle", "index"),
        [
            (64, 0, 0),  # the difference must be exceeded
            (65, 0, 1),
            (195, 130, 0),  # and the ratio
            (196, 130, 1),
            (1000, 900, 0),
        ],
    )
    def test_imbalance_needs_both_thresholds_exceeded(
        self, busy: int, idle: int, index: int
    ) -> None:
        fleet = [
            Candidate("a", matched_tokens=992, requests=busy),
            Candidate("b", requests=idle),
        ]
        assert CacheThreshold().choose(QUERY, fleet).index == index

    def test_equal_matches_are_drawn_whatever_their_load(self) -> None:
        fleet = [
            Candidate("a", matched_tokens=512, requests=9),
            Candidate("b", matched_tokens=512),
            Candidate("c", matched_tokens=256),
        ]
        drawn = shares(CacheThreshold(rng=Random(1)), fleet)
        assert set(drawn) == {"a", "b"}
        assert 140 < drawn["a"] < 260

    def test_an_empty_prompt_goes_by_load(self) -> None:
        fleet = [Candidate("a", requests=1), Candidate("b")]
        assert CacheThreshold().choose(Query(0, 0.0), fleet) == Choice(1, "load")


class TestOverlapCost:
    def fleet(self) -> list[Candidate]:
        """Make the example of Dynamo's router guide: 10 blocks of 16 to place."""
        return [
            Candidate("1", matched_tokens=2 * 16, context_tokens=10 * 16),
            Candidate("2", matched_tokens=5 * 16, context_tokens=5 * 16),
            Candidate("3", matched_tokens=8 * 16, context_tokens=9 * 16),
        ]

    def test_the_example_of_the_guide(self) -> None:
        """Costs 18, 10 and 11 there; this request's own decode is the same for all."""
        assert OverlapCost().choose(Query(160, 0.0), self.fleet()).index == 1

    @pytest.mark.parametrize(("weight", "index"), [(0.0, 1), (1.3, 1), (1.4, 2)])
    def test_the_weight_shifts_from_decode_to_prefill(
        self, weight: float, index: int
    ) -> None:
        """5 w + 5 against 2 w + 9: equal at 4/3."""
        policy = OverlapCost(overlap_weight=weight)
        assert policy.choose(Query(160, 0.0), self.fleet()).index == index

    def test_prefill_in_flight_counts_in_full(self) -> None:
        fleet = [
            Candidate("a", prefill_tokens=500, head_tokens=500, head_since=-1e6),
            Candidate("b", context_tokens=499),
        ]
        assert OverlapCost().choose(QUERY, fleet).index == 1

    def test_lmetric_multiplies(self) -> None:
        """5 x (10 + 1) against 3 x (20 + 1) blocks; the sum would be 15 and 23."""
        fleet = [
            Candidate("a", matched_tokens=5 * 16),
            Candidate("b", matched_tokens=7 * 16, context_tokens=10 * 16),
        ]
        query = Query(160, 0.0)
        assert OverlapCost(form="lmetric").choose(query, fleet).index == 0
        fleet[1].matched_tokens = 9 * 16  # 1 x 21, though the sum is 21 against 15
        assert OverlapCost(form="lmetric").choose(query, fleet).index == 1
        assert OverlapCost().choose(query, fleet).index == 0

    def test_lmetric_adds_a_block_to_decode(self) -> None:
        """5 x (10 + 1) is more than 3 x (17 + 1) blocks, but 5 x 10 is less."""
        fleet = [
            Candidate("a", matched_tokens=5 * 16),
            Candidate("b", matched_tokens=7 * 16, context_tokens=7 * 16),
        ]
        policy = OverlapCost(form="lmetric")
        assert policy.choose(Query(160, 0.0), fleet).index == 1

    def test_temperature_draws_by_softmax_over_the_range(self) -> None:
        """Least and greatest cost differ by e to the 1/temperature, at any scale."""
        for tokens in (10, 10_000_000):
            fleet = [Candidate("a"), Candidate("b", context_tokens=tokens)]
            drawn = shares(OverlapCost(temperature=1.0, rng=Random(1)), fleet, 4000)
            assert drawn["a"] / drawn["b"] == pytest.approx(2.718, rel=0.15)

    def test_the_smallest_temperature_is_no_overflow(self) -> None:
        fleet = [Candidate("a"), Candidate("b", context_tokens=10**9)]
        drawn = shares(OverlapCost(temperature=5e-324, rng=Random(1)), fleet)
        assert set(drawn) == {"a"}

    def test_an_unknown_form_is_refused(self) -> None:
        message = r"policy overlap_cost: form: unknown form 'lmetrics' \(known: line"
        with pytest.raises(PolicyError, match=message):
            build("overlap_cost", {"form": "lmetrics"})


class TestWeightedScores:
    def test_scores_are_weighted_three_two_two(self) -> None:
        """Prefix 0.5 and nothing else is 1.5; the shortest queue alone is 2."""
        warm = Candidate("a", matched_tokens=500, requests=4)
        fleet = [warm, Candidate("b")]
        assert WeightedScores().choose(QUERY, fleet) == Choice(1, "load")
        warm.matched_tokens = 672  # 2.016
        assert WeightedScores().choose(QUERY, fleet) == Choice(0, "prefix")
        fleet[1].kv_usage = 0.9  # 2.2
        assert WeightedScores().choose(QUERY, fleet).index == 1

    def test_queues_are_scaled_to_their_range(self) -> None:
        """Whether 1 or 1000 wait more, the shortest has 1 and the longest 0."""
        for waiting in (1, 1000):
            fleet = [
                Candidate("a", matched_tokens=660, requests=waiting),
                Candidate("b"),
            ]
            assert WeightedScores().choose(QUERY, fleet).index == 1
            fleet[0].matched_tokens = 680
            assert WeightedScores().choose(QUERY, fleet).index == 0

    def test_equal_queues_leave_the_rest_to_decide(self) -> None:
        fleet = [
            Candidate("a", requests=2),
            Candidate("b", requests=2, matched_tokens=16),
        ]
        assert WeightedScores().choose(QUERY, fleet).index == 1

    def test_requests_in_decode_are_no_queue(self) -> None:
        fleet = [Candidate("a", requests=9, decodes=9), Candidate("b", requests=1)]
        assert WeightedScores().choose(QUERY, fleet).index == 0

    def test_unknown_kv_usage_scores_nothing(self) -> None:
        fleet = [Candidate("a"), Candidate("b", kv_usage=0.99)]
        assert WeightedScores().choose(QUERY, fleet).index == 1


class TestExploreExploit:
    def policy(self, **given: float) -> ExploreExploit:
        return ExploreExploit(rng=Random(1), **given)

    def test_half_the_prompt_is_not_enough_to_exploit(self) -> None:
        """At just half it explores, and the warm but loaded backend loses."""
        policy = self.policy()
        fleet = [Candidate("a"), Candidate("b")]
        policy._window.add("a", 8000, 100.0)
        for matched, expected in ((500, Choice(1, "load")), (501, Choice(0, "prefix"))):
            fleet[0].matched_tokens = matched
            assert policy.choose(QUERY, fleet) == expected

    def test_exploring_weighs_load_against_its_own_prefill(self) -> None:
        policy = self.policy()
        fleet = [Candidate("a", matched_tokens=400), Candidate("b")]
        for one in fleet:
            one.speed.line.base_s = one.speed.line.request_s = (
                one.speed.line.token_s
            ) = 0.0
        policy._window.add("a", 399, 100.0)
        assert policy.choose(QUERY, fleet).index == 0
        policy._window.add("a", 0, 100.0)
        assert policy.choose(QUERY, fleet).index == 1

    def test_decode_is_load_as_well(self) -> None:
        policy = self.policy()
        policy._window.add("a", 0, 100.0)
        fleet = [Candidate("a"), Candidate("b")]
        assert policy.choose(QUERY, fleet).index == 1

    def test_who_is_not_the_heaviest_is_exploited_however_uneven(self) -> None:
        policy = self.policy()
        for _ in range(50):
            policy._window.add("b", 1000, 100.0)
        policy._window.add("a", 500, 100.0)
        fleet = [Candidate("a", matched_tokens=992), Candidate("b"), Candidate("c")]
        assert policy.choose(QUERY, fleet) == Choice(0, "prefix")

    def test_of_equal_matches_the_lightest_is_exploited(self) -> None:
        policy = self.policy()
        fleet = [Candidate(letter, matched_tokens=992) for letter in "ab"]
        fleet.append(Candidate("c"))
        policy._window.add("a", 10, 100.0)
        assert policy.choose(QUERY, fleet) == Choice(1, "prefix")

    def test_load_is_forgotten_with_the_window(self) -> None:
        policy = self.policy(window_s=180.0)
        fleet = [Candidate("a"), Candidate("b", rate=7999.0)]
        policy._window.add("a", 8000, 100.0)
        assert policy.choose(Query(1000, 279.9), fleet).index == 1
        policy = self.policy(window_s=180.0)
        policy._window.add("a", 8000, 100.0)
        assert policy.choose(Query(1000, 280.0), fleet).index == 0

    @pytest.mark.parametrize(("requests", "index"), [(49, 0), (50, 1)])
    def test_the_heaviest_is_spared_once_loads_are_worth_balancing(
        self, requests: int, index: int
    ) -> None:
        policy = self.policy()
        for _ in range(requests):
            policy._window.add("a", 100, 100.0)
        fleet = [Candidate("a", matched_tokens=992), Candidate("b")]
        assert policy.choose(QUERY, fleet).index == index

    @pytest.mark.parametrize(("tokens", "index"), [(1150, 0), (1151, 1)])
    def test_loads_within_the_factor_are_even(self, tokens: int, index: int) -> None:
        policy = self.policy(balance_threshold=1.15)
        speed = SpeedClass()
        speed.line.base_s = speed.line.request_s = speed.line.token_s = 0.0
        fleet = [Candidate("a", speed, matched_tokens=992), Candidate("b", speed)]
        for one in fleet:
            one.rate = 1.0
            for _ in range(50):
                policy._window.add(one.name, 0, 100.0)
        policy._window.add("a", tokens, 100.0)
        policy._window.add("b", 1000, 100.0)
        assert policy.choose(QUERY, fleet).index == index

    def test_its_own_choices_spread_cold_prompts(self) -> None:
        fleet = [Candidate(letter) for letter in "abcd"]
        assert set(shares(self.policy(), fleet, 40).values()) == {10}


class TestSentWindow:
    @given(
        st.lists(
            st.tuples(st.sampled_from("abc"), st.integers(0, 100), st.floats(0, 20)),
            max_size=40,
        )
    )
    def test_it_sums_what_a_list_of_all_would(
        self, sent: list[tuple[str, int, float]]
    ) -> None:
        """A request counts from its second on until that is *length_s* old."""
        window, now, naive = SentWindow(10.0), 0.0, []
        for name, tokens, pause in sent:
            now += pause
            window.forget(now)
            window.add(name, tokens, now)
            naive.append((name, tokens, int(now)))
            kept = [one for one in naive if one[2] > now - 10.0]
            assert window.requests == len(kept)
            for which in "abc":
                mine = [tokens for name, tokens, _ in kept if name == which]
                assert window.sent(which) == (sum(mine), len(mine))

    def test_names_that_never_return_leave_nothing(self) -> None:
        window = SentWindow(180.0)
        for number in range(5000):
            window.forget(float(number))
            window.add(f"pod-{number}", 1, float(number))
        assert len(window._sums) <= 181
        assert repr(window) == "<SentWindow 180 requests in 180 s>"

    def test_time_that_goes_back_counts_as_now(self) -> None:
        window = SentWindow(10.0)
        window.add("a", 5, 100.0)
        window.add("a", 5, 50.0)
        window.forget(109.0)
        assert window.sent("a") == (10, 2)
        window.forget(110.0)
        assert window.sent("a") == (0, 0)
