"""Speed is what first tokens and answers teach; faults teach little."""

import pytest

from warmroute.policies.routing.base import Candidate
from warmroute.policies.routing.load import FleetLoad
from warmroute.policies.routing.rates import COLD_OUTPUT_TOKENS, COLD_RATE
from warmroute.policies.routing.samples import SHRINK_S

CLASS = "smol|vllm|cpu"


def prefill(
    load: FleetLoad, candidate: Candidate, tokens: int, start: float, took: float
) -> float:
    """Serve one request to its end; return when that was."""
    reservation = load.reserve(candidate, tokens, tokens, start)
    reservation.first_token(start + took)
    reservation.release(start + took, 1)
    return start + took


class TestRates:
    def test_a_new_backend_has_the_rate_of_a_cold_class(self) -> None:
        assert FleetLoad().add("a", CLASS).rate == COLD_RATE

    def test_the_rate_is_the_shrunk_ratio_of_decaying_sums(self) -> None:
        load = FleetLoad()
        a = load.add("a", CLASS)
        load.refresh(0.0)
        a.learned_at = 0.0
        prefill(load, a, 1000, 0.0, 0.5)
        forget = 0.5 ** (1.5 / 600)
        prefill(load, a, 4000, 1.0, 1.0)
        assert a.tok == pytest.approx(0.995 * forget * 1000 + 4000)
        assert a.busy == pytest.approx(0.995 * forget * 0.5 + 1.0)
        f = a.speed.rate
        assert a.rate == pytest.approx((a.tok + SHRINK_S * f) / (a.busy + SHRINK_S))

    def test_busy_time_starts_at_the_previous_first_token(self) -> None:
        load = FleetLoad()
        a = load.add("a", CLASS)
        first, second = load.reserve(a, 800, 800, 0.0), load.reserve(a, 800, 800, 0.0)
        first.first_token(1.0)
        second.first_token(1.25)
        assert a.busy == pytest.approx(1.25, rel=0.01)

    def test_the_class_takes_the_speed_of_its_members(self) -> None:
        load = FleetLoad()
        backends = [load.add(name, CLASS) for name in "abcd"]
        now = 0.0
        for turn in range(200):
            now = prefill(load, backends[turn % 4], 1000, now, 0.5)
        load.refresh(now)
        assert [one.rate for one in backends] == pytest.approx([2000.0] * 4, rel=0.08)
        assert load.add("e", CLASS).rate == pytest.approx(2000.0, rel=0.08)
        assert load.add("f", "smol|vllm|gpu").rate == COLD_RATE

    def test_few_samples_of_one_backend_do_not_set_it_apart(self) -> None:
        """A rate of its own made engines idle while others piled up."""
        load = FleetLoad()
        a, b = load.add("a", CLASS), load.add("b", CLASS)
        now = 0.0
        for _ in range(3):
            now = prefill(load, a, 4000, now, 0.5)
            now = prefill(load, b, 4000, now, 1.0)
        load.refresh(now)
        assert 1.0 < a.rate / b.rate < 1.1

    def test_a_backend_that_is_really_slower_is_known_in_the_end(self) -> None:
        load = FleetLoad()
        a, b = load.add("a", CLASS), load.add("b", CLASS)
        now = 0.0
        for _ in range(400):
            now = prefill(load, a, 8000, now, 1.0)
            now = prefill(load, b, 8000, now, 4.0)
        load.refresh(now)
        assert a.rate / b.rate > 2

    def test_cached_prompts_do_not_teach_a_rate(self) -> None:
        load = FleetLoad()
        a = load.add("a", CLASS)
        now = 0.0
        for _ in range(100):
            now = prefill(load, a, 16, now, 0.03)
            now = prefill(load, a, 0, now, 0.03)
        load.refresh(now)
        assert a.rate == COLD_RATE

    def test_one_stuck_request_barely_moves_the_rate(self) -> None:
        load = FleetLoad()
        a = load.add("a", CLASS)
        now = 0.0
        for _ in range(50):
            now = prefill(load, a, 8000, now, 1.0)
        before = a.rate
        prefill(load, a, 1000, now, 600.0)
        assert a.rate > 0.9 * before

    def test_a_cancelled_request_teaches_nothing(self) -> None:
        load = FleetLoad()
        a = load.add("a", CLASS)
        load.reserve(a, 8000, 8000, 0.0).release(500.0, 12, learn=False)
        load.refresh(500.0)
        assert a.rate == COLD_RATE
        assert load.query(1, 500.0).output_tokens == COLD_OUTPUT_TOKENS

    def test_a_starved_backend_returns_to_its_class(self) -> None:
        load = FleetLoad()
        a, b = load.add("a", CLASS), load.add("b", CLASS)
        now = 0.0
        for _ in range(200):
            prefill(load, a, 8000, now, 1.0)
            now = prefill(load, b, 8000, now, 8.0)
        load.refresh(now)
        slow = b.rate / a.rate
        for _ in range(3600):
            now = prefill(load, a, 8000, now, 1.0)
        load.refresh(now)
        assert slow < 0.5
        assert b.rate / a.rate > 0.8

    def test_the_rate_of_a_class_outlives_a_restart_of_its_only_backend(self) -> None:
        load = FleetLoad()
        a = load.add("a", CLASS)
        now = 0.0
        for _ in range(100):
            now = prefill(load, a, 1000, now, 1.0)
        load.refresh(now)
        load.remove("a")
        load.refresh(now + 1)
        assert load.add("a", CLASS).rate == pytest.approx(1000.0, rel=0.15)

    def test_a_wrong_prediction_is_put_right_by_the_engines_report(self) -> None:
        load = FleetLoad()
        a = load.add("a", CLASS)
        reservation = load.reserve(a, 8000, 8000, 0.0)
        reservation.first_token(0.1)
        reservation.release(1.0, 10, cached_tokens=7200)
        assert a.tok == pytest.approx(800)

    def test_classes_that_nobody_is_in_are_forgotten(self) -> None:
        load = FleetLoad()
        for number in range(2000):
            load.add("a", f"model-{number}|vllm|gpu")
        assert len(load._classes) <= 257
        assert len(load._pools) <= 257


class TestInterTokenLatency:
    def stream(self, load: FleetLoad, candidate: Candidate, itl_s: float) -> None:
        reservation = load.reserve(candidate, 1000, 0, 0.0)
        reservation.first_token(0.0)
        reservation.release(itl_s * 100, 101)

    def test_the_class_starts_from_the_published_line(self) -> None:
        a = FleetLoad().add("a", CLASS)
        assert a.speed.line.itl_s(2, 10_000) == pytest.approx(6.5e-3 + 50e-6 + 460e-6)
        assert a.itl_s == pytest.approx(6.5e-3 + 25e-6)

    def test_streams_teach_it_to_the_whole_class(self) -> None:
        load = FleetLoad()
        a, b = load.add("a", CLASS), load.add("b", CLASS)
        for _ in range(60):
            self.stream(load, a, 0.080)
        assert b.speed.line.itl_s(1, 1000) == pytest.approx(0.080, rel=0.1)
        assert load.add("c", "other").speed.line.scale == 1.0

    def test_one_stalled_stream_barely_moves_it(self) -> None:
        load = FleetLoad()
        a = load.add("a", CLASS)
        for _ in range(100):
            self.stream(load, a, 0.010)
        before = a.itl_s
        self.stream(load, a, 60.0)
        assert a.itl_s < 1.1 * before


class TestDepth:
    def test_it_is_the_mean_of_what_is_computed_weighted_by_tokens(self) -> None:
        load = FleetLoad()
        a = load.add("a", CLASS)
        assert load.query(10, 0.0, like=a).depth_tokens is None
        load.reserve(a, 1000, 1000, 0.0)
        assert load.query(10, 0.0, like=a).depth_tokens == 500
        load.reserve(a, 10_000, 400, 0.0)
        depth = (0.995 * 500 * 1000 + 9800 * 400) / (0.995 * 1000 + 400)
        assert load.query(10, 0.0, like=a).depth_tokens == pytest.approx(depth)

    def test_a_prompt_that_is_all_cached_teaches_nothing(self) -> None:
        load = FleetLoad()
        a = load.add("a", CLASS)
        load.reserve(a, 1000, 0, 0.0)
        assert load.query(10, 0.0, like=a).depth_tokens is None
