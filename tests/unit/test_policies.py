"""Each policy chooses as it promises and keeps the contract."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from unit.policy_rig import BUILT_IN, chosen, fleet

from warmroute.policies.routing.base import Candidate, Choice, Policy, Query, build
from warmroute.policies.routing.least_requests import LeastRequests
from warmroute.policies.routing.power_of_two import PowerOfTwo
from warmroute.policies.routing.random import Random as RandomPolicy
from warmroute.policies.routing.round_robin import RoundRobin
from warmroute.policies.routing.session import Session

QUERY = Query(1000, 100.0)


class TestLeastRequests:
    def test_the_fewest_requests_win(self) -> None:
        assert LeastRequests().choose(QUERY, fleet(3, 1, 2)) == Choice(1, "load")

    def test_ties_are_drawn_evenly(self) -> None:
        drawn = chosen(LeastRequests(rng=Random(1)), fleet(1, 0, 0, 2), 1000, QUERY)
        assert set(drawn) == {"b", "c"}
        assert 400 < drawn["b"] < 600


class TestPowerOfTwo:
    def test_the_most_loaded_is_never_chosen(self) -> None:
        drawn = chosen(PowerOfTwo(rng=Random(1)), fleet(1, 9, 1, 1), 1000, QUERY)
        assert set(drawn) == {"a", "c", "d"}

    def test_the_two_drawn_are_different_and_any_pair_may_be(self) -> None:
        drawn = chosen(PowerOfTwo(rng=Random(1)), fleet(0, 1, 2), 3000, QUERY)
        assert 1800 < drawn["a"] < 2200
        assert 800 < drawn["b"] < 1200

    def test_one_candidate_is_enough(self) -> None:
        assert PowerOfTwo().choose(QUERY, fleet(5)).index == 0


class TestRandom:
    def test_all_candidates_are_drawn_evenly(self) -> None:
        drawn = chosen(RandomPolicy(rng=Random(1)), fleet(0, 9, 3, 1), 4000, QUERY)
        assert all(850 < drawn[name] < 1150 for name in "abcd")


class TestRoundRobin:
    def order(self, policy: Policy, names: str, times: int) -> str:
        candidates = [Candidate(name) for name in names]
        return "".join(
            candidates[policy.choose(QUERY, candidates).index].name
            for _ in range(times)
        )

    def test_it_goes_round_from_the_first(self) -> None:
        assert self.order(RoundRobin(), "abc", 7) == "abcabca"

    def test_one_that_leaves_does_not_disturb_the_others(self) -> None:
        policy = RoundRobin()
        assert self.order(policy, "abcd", 2) == "ab"
        assert self.order(policy, "acd", 5) == "cdacd"

    def test_one_that_comes_gets_its_turn_and_no_more(self) -> None:
        policy = RoundRobin()
        assert self.order(policy, "abc", 30) == "abc" * 10
        assert self.order(policy, "xabc", 8) == "xabcxabc"

    def test_models_that_alternate_do_not_starve_a_backend(self) -> None:
        policy = RoundRobin()
        orders = [
            self.order(policy, "ab" if turn % 2 else "cd", 1) for turn in range(8)
        ]
        assert "".join(orders) == "cadbcadb"

    def test_names_that_never_return_are_forgotten(self) -> None:
        policy = RoundRobin()
        for number in range(10_000):
            policy.choose(QUERY, [Candidate(f"pod-{number}")])
        assert len(policy._turns) <= 4096
        assert self.order(policy, "ab", 4) == "abab"


class TestSession:
    def home(
        self, key: str, candidates: Sequence[Candidate], policy: Policy | None = None
    ) -> str:
        query = Query(1000, 0.0, key)
        choice = (policy or Session()).choose(query, candidates)
        return candidates[choice.index].name

    def test_a_session_stays_whatever_the_order_of_candidates(self) -> None:
        candidates = fleet(0, 0, 0, 0)
        for number in range(50):
            key = f"session-{number}"
            assert self.home(key, candidates) == self.home(key, candidates[::-1])
        assert Session().choose(Query(1, 0.0, "k"), candidates).reason == "session"

    def test_sessions_spread_evenly(self) -> None:
        candidates = fleet(*[0] * 8)
        homes = Counter(self.home(f"s{i}", candidates) for i in range(4000))
        assert all(400 < count < 600 for count in homes.values())
        assert len(homes) == 8

    def test_a_backend_that_leaves_moves_only_its_own_sessions(self) -> None:
        candidates = fleet(*[0] * 8)
        fewer = [one for one in candidates if one.name != "c"]
        for number in range(500):
            before = self.home(f"s{number}", candidates)
            if before != "c":
                assert self.home(f"s{number}", fewer) == before

    def test_a_full_home_hands_on_to_the_next_in_rank(self) -> None:
        candidates = fleet(*[4] * 8)
        home = self.home("k", candidates)
        next(one for one in candidates if one.name == home).requests = 9
        choice = Session().choose(Query(1, 0.0, "k"), candidates)
        second = candidates[choice.index].name
        assert second != home
        assert choice.reason == "load"
        assert second == self.home("k", [one for one in candidates if one.name != home])

    @pytest.mark.parametrize("bound", [1.0, 1.25, 2.0])
    def test_no_backend_exceeds_the_bound_under_one_hot_session(
        self, bound: float
    ) -> None:
        candidates = fleet(*[0] * 8)
        policy = Session(bound=bound)
        for _ in range(800):
            choice = policy.choose(Query(1, 0.0, "hot"), candidates)
            candidates[choice.index].requests += 1
        assert max(one.requests for one in candidates) <= bound * 100 + 1

    def test_without_a_key_the_fewest_requests_win(self) -> None:
        assert Session().choose(QUERY, fleet(2, 0, 2)) == Choice(1, "load")

    def test_any_string_is_a_key(self) -> None:
        for key in ("\ud800", "é" * 5000, "\x00"):
            assert self.home(key, fleet(0, 0)) in "ab"


class TestEveryPolicy:
    @pytest.mark.parametrize("name", BUILT_IN)
    @pytest.mark.parametrize("count", [1, 2, 64])
    def test_it_chooses_one_of_the_candidates_and_changes_none(
        self, name: str, count: int
    ) -> None:
        candidates = fleet(*[i % 3 for i in range(count)])
        before = [repr(one) for one in candidates]
        choice = build(name).choose(Query(500, 1.0, "s"), candidates)
        assert 0 <= choice.index < count
        assert [repr(one) for one in candidates] == before

    @pytest.mark.parametrize("name", BUILT_IN)
    def test_its_name_is_that_of_its_entry_point(self, name: str) -> None:
        assert build(name).name == name
