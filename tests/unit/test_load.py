"""Load is what our reservations say, and speed is what first tokens teach."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmroute.policies.routing.base import Candidate
from warmroute.policies.routing.load import FleetLoad, Reservation
from warmroute.policies.routing.rates import COLD_OUTPUT_TOKENS, COLD_RATE

CLASS = "smol|vllm|cpu"


def counts(candidate: Candidate) -> tuple[int, int, int, int, int]:
    return (
        candidate.requests,
        candidate.prefill_tokens,
        candidate.decodes,
        candidate.context_tokens,
        candidate.head_tokens,
    )


class TestCounts:
    def test_a_reservation_adds_its_load_at_once(self) -> None:
        load = FleetLoad()
        a = load.add("a", CLASS)
        load.reserve(a, 1000, 600, 5.0)
        assert counts(a) == (1, 600, 0, 1000, 600)
        assert a.head_since == 5.0

    def test_the_first_token_turns_prefill_into_decode(self) -> None:
        load = FleetLoad()
        a = load.add("a", CLASS)
        reservation = load.reserve(a, 1000, 600, 5.0)
        reservation.first_token(6.0)
        assert counts(a) == (1, 0, 1, 1000, 0)
        assert a.last_first_token == 6.0
        assert repr(reservation) == "<Reservation a 1000 decode>"

    @pytest.mark.parametrize("streamed", [True, False])
    @pytest.mark.parametrize("has_begun", [True, False])
    def test_a_release_takes_everything_away_once(
        self, has_begun: bool, streamed: bool
    ) -> None:
        load = FleetLoad()
        a = load.add("a", CLASS)
        other = load.reserve(a, 10, 10, 0.0)
        reservation = load.reserve(a, 1000, 600, 5.0, streamed)
        if has_begun:
            reservation.first_token(6.0)
            reservation.first_token(6.5)
        before = counts(a)
        reservation.release(7.0)
        reservation.release(8.0, learn=False)
        reservation.first_token(9.0)
        assert before != counts(a) == (1, 10, 0, 10, 10)
        assert repr(reservation) == "<Reservation a 1000 done>"
        other.release(9.0)
        assert counts(a) == (0, 0, 0, 0, 0)

    def test_the_oldest_without_a_first_token_is_the_head(self) -> None:
        load = FleetLoad()
        a = load.add("a", CLASS)
        first, second, third = (
            load.reserve(a, tokens, tokens, at)
            for tokens, at in ((100, 1.0), (200, 2.0), (300, 3.0))
        )
        second.first_token(4.0)
        assert (a.head_tokens, a.head_since) == (100, 1.0)
        first.release(5.0, learn=False)
        assert (a.head_tokens, a.head_since) == (300, 3.0)
        third.first_token(6.0)
        assert a.head_tokens == 0

    def test_the_end_of_a_request_on_a_removed_backend_harms_nobody(self) -> None:
        load = FleetLoad()
        old = load.add("a", CLASS)
        begun, queued = load.reserve(old, 100, 100, 0.0), load.reserve(old, 9, 9, 0.0)
        begun.first_token(1.0)
        load.remove("a")
        load.remove("a")
        new = load.add("a", CLASS)
        live = load.reserve(new, 50, 50, 2.0)
        begun.release(3.0, 10)
        queued.first_token(3.0)
        queued.release(3.0, 10)
        assert new is not old
        assert counts(new) == (1, 50, 0, 50, 50)
        live.release(4.0)
        assert repr(load) == "<FleetLoad 1 candidates, 0 requests>"

    def test_adding_a_name_again_starts_from_nothing(self) -> None:
        load = FleetLoad()
        load.reserve(load.add("a", CLASS), 100, 100, 0.0)
        assert counts(load.add("a", CLASS)) == (0, 0, 0, 0, 0)
        assert list(load.candidates) == ["a"]


@dataclass
class NaiveRequest:
    reservation: Reservation
    backend: Candidate
    prompt: int
    uncached: int
    at: float
    state: str = "prefill"


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "first_token", "release", "release", "restart"]),
        st.integers(0, 1 << 16),
        st.integers(0, 5000),
        st.integers(0, 5000),
    ),
    max_size=60,
)


class TestAgainstNaiveModel:
    @given(OPERATIONS)
    @settings(max_examples=150, deadline=None)
    def test_counts_equal_a_recount_of_all_live_requests(
        self, operations: list[tuple[str, int, int, int]]
    ) -> None:
        load = FleetLoad()
        for name in "abc":
            load.add(name, CLASS)
        model: list[NaiveRequest] = []
        for now, (operation, pick, prompt, cached) in enumerate(operations, 1):
            name = "abc"[pick % 3]
            if operation == "reserve":
                backend = load.candidates[name]
                uncached = max(0, prompt - cached)
                reservation = load.reserve(backend, prompt, uncached, float(now))
                model.append(
                    NaiveRequest(reservation, backend, prompt, uncached, float(now))
                )
            elif operation == "restart":
                load.add(name, CLASS)
            elif model:
                self.advance(model[pick % len(model)], operation, float(now), cached)
            for candidate in load.candidates.values():
                assert counts(candidate) == self.recount(model, candidate)
                assert candidate.rate > 0

    def advance(
        self, request: NaiveRequest, operation: str, now: float, output: int
    ) -> None:
        if operation == "release":
            request.reservation.release(now, output)
            request.state = "done"
        else:
            request.reservation.first_token(now)
            if request.state == "prefill":
                request.state = "decode"

    def recount(
        self, model: list[NaiveRequest], candidate: Candidate
    ) -> tuple[int, int, int, int, int]:
        live = [r for r in model if r.backend is candidate and r.state != "done"]
        queued = [r for r in live if r.state == "prefill"]
        return (
            len(live),
            sum(r.uncached for r in queued),
            len(live) - len(queued),
            sum(r.prompt for r in live),
            min(queued, key=lambda r: r.at).uncached if queued else 0,
        )


class TestHiddenFirstTokens:
    def test_a_prefill_without_a_first_token_ends_by_the_rate(self) -> None:
        load = FleetLoad()
        a = load.add("a", CLASS)
        load.reserve(a, 8000, 8000, 10.0, streamed=False)
        load.reserve(a, 8000, 8000, 10.0, streamed=False)
        load.refresh(11.5)
        assert counts(a) == (2, 8000, 1, 16000, 8000)
        load.refresh(12.0)
        assert counts(a) == (2, 0, 2, 16000, 0)

    def test_a_later_first_token_shows_that_it_is_over(self) -> None:
        load = FleetLoad()
        a = load.add("a", CLASS)
        load.reserve(a, 2000, 2000, 0.0, streamed=False)
        load.reserve(a, 1000, 1000, 0.0).first_token(1.5)
        assert counts(a) == (2, 0, 2, 3000, 0)
        assert (a.tok, a.busy) == pytest.approx((3000, 1.5))

    def test_its_answer_does_not_teach_speed(self) -> None:
        load = FleetLoad()
        a = load.add("a", CLASS)
        reservation = load.reserve(a, 1000, 1000, 0.0, streamed=False)
        reservation.first_token(30.0)
        reservation.release(30.0, 500)
        load.refresh(30.0)
        assert a.rate == COLD_RATE
        assert a.speed.line.scale == 1.0
        assert load.query(1, 30.0).output_tokens > COLD_OUTPUT_TOKENS


class TestQuery:
    def test_rho_is_the_work_of_a_minute_over_what_a_minute_can_do(self) -> None:
        load = FleetLoad()
        a, b = load.add("a", CLASS), load.add("b", CLASS)
        for second in range(30):
            load.reserve(a if second % 2 else b, 16000, 8000, 100.0 + second)
        rho = load.query(1, 130.0).rho
        assert rho == pytest.approx(30 * 8000 / (60 * (a.rate + b.rate)))
        assert load.query(1, 175.0).rho == pytest.approx(rho * 14 / 30)
        assert load.query(1, 500.0).rho == 0.0

    def test_one_model_does_not_see_the_utilisation_of_another(self) -> None:
        load = FleetLoad()
        a, b = load.add("a", "x|vllm|gpu"), load.add("b", "y|vllm|gpu")
        load.reserve(a, 48000, 48000, 1.0)
        assert load.query(1, 2.0, like=b).rho == 0.0
        assert load.query(1, 2.0, like=a).rho == pytest.approx(0.1)
        assert load.query(1, 2.0).rho == pytest.approx(0.1)

    def test_two_hardware_classes_of_one_model_share_utilisation(self) -> None:
        load = FleetLoad()
        a, b = load.add("a", "x|vllm|gpu"), load.add("b", "x|vllm|cpu")
        load.reserve(a, 48000, 48000, 1.0)
        assert load.query(1, 2.0, like=b).rho == pytest.approx(0.05)

    def test_it_carries_prompt_time_and_session(self) -> None:
        query = FleetLoad().query(7, 3.0, "me")
        assert (query.prompt_tokens, query.now, query.session) == (7, 3.0, "me")
        assert query.rho == 0.0

    def test_the_expected_answer_follows_the_answers(self) -> None:
        load = FleetLoad()
        a = load.add("a", CLASS)
        for _ in range(2000):
            load.reserve(a, 10, 10, 0.0).release(0.0, 40)
        assert load.query(1, 0.0).output_tokens == pytest.approx(40, rel=0.05)

    def test_one_endless_answer_does_not_set_the_expectation(self) -> None:
        load = FleetLoad()
        a = load.add("a", CLASS)
        for _ in range(200):
            load.reserve(a, 10, 10, 0.0).release(0.0, 40)
        before = load.query(1, 0.0).output_tokens
        load.reserve(a, 10, 10, 0.0).release(0.0, 10**9)
        assert load.query(1, 0.0).output_tokens < 1.2 * before
