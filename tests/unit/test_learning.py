"""Speed is learned in some dozens of requests, and no outlier teaches another."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.simulated_fleet import SimulatedFleet

from warmroute.policies.routing.itl_line import ItlLine
from warmroute.policies.routing.least_squares import solve_nonnegative
from warmroute.policies.routing.samples import SHRINK_S, Sample, Samples, shrinks

FAST = {f"fast-{number}": 8000.0 for number in range(3)}


class TestMixedHardware:
    @pytest.mark.parametrize("seed", range(4))
    def test_a_backend_twice_as_slow_has_its_share_within_50_requests(
        self, seed: int
    ) -> None:
        fleet = SimulatedFleet({"slow": 4000.0, **FAST}, seed)
        fleet.run(50, 0.9)
        assert fleet.rate("slow") < 0.85 * fleet.rate("fast-0")
        fleet.run(100, 0.9)
        assert fleet.share("slow", 100) == pytest.approx(1 / 7, rel=0.25)

    @pytest.mark.parametrize("seed", range(4))
    def test_one_that_becomes_fast_again_relearns(self, seed: int) -> None:
        fleet = SimulatedFleet({"slow": 4000.0, **FAST}, seed)
        fleet.run(150, 0.9)
        fleet.rates["slow"] = 8000.0
        fleet.run(100, 0.9)
        assert fleet.rate("slow") > 0.9 * fleet.rate("fast-0")
        fleet.run(100, 0.9)
        assert fleet.share("slow", 100) == pytest.approx(1 / 4, rel=0.25)

    def test_one_that_got_nothing_is_tried_again(self) -> None:
        fleet = SimulatedFleet({"slow": 1000.0, **FAST}, 1)
        fleet.run(100, 0.5)
        assert fleet.rate("slow") < 0.4 * fleet.rate("fast-0")
        fleet.rates["slow"] = 8000.0
        fleet.run(12_000, 0.3)
        assert fleet.rate("slow") > 0.8 * fleet.rate("fast-0")

    def test_a_lone_backend_that_changes_is_known_in_some_dozen_requests(self) -> None:
        fleet = SimulatedFleet({"only": 2000.0})
        fleet.run(300, 0.5)
        fleet.rates["only"] = 6000.0
        fleet.run(40, 0.5)
        assert fleet.rate("only") == pytest.approx(6000.0, rel=0.25)

    def test_a_cold_fleet_far_from_its_prior_is_known_soon(self) -> None:
        fleet = SimulatedFleet({"a": 80.0, "b": 80.0})
        fleet.run(30, 0.5)
        assert fleet.rate("a") == pytest.approx(80.0, rel=0.3)


class TestOutliers:
    @given(
        st.integers(0, 1000),
        st.sets(st.integers(20, 119), min_size=1, max_size=4),
        st.floats(10, 3000),
    )
    @settings(max_examples=25, deadline=None)
    def test_pauses_and_stalls_set_no_backend_apart(
        self, seed: int, paused: set[int], pause_s: float
    ) -> None:
        fleet = SimulatedFleet(dict(FAST), seed)
        fleet.run(20, 0.6)
        fleet.spoil = lambda number, s: s + pause_s * (number in paused)
        fleet.run(100, 0.6)
        rates = [fleet.rate(name) for name in FAST]
        assert min(rates) > 0.8 * max(rates)
        assert min(rates) > 0.6 * 8000

    @given(st.integers(0, 10_000))
    @settings(max_examples=25, deadline=None)
    def test_noise_sets_no_backend_apart(self, seed: int) -> None:
        fleet, rng = SimulatedFleet(dict(FAST), seed), Random(seed)
        fleet.spoil = lambda _, s: s * rng.lognormvariate(0, 0.4)
        fleet.run(150, 0.7)
        rates = [fleet.rate(name) for name in FAST]
        assert min(rates) > 0.7 * max(rates)

    def test_cancelled_requests_teach_nothing_of_speed(self) -> None:
        fleet = SimulatedFleet(dict(FAST))
        fleet.run(50, 0.5)
        before = [fleet.rate(name) for name in FAST]
        for candidate in fleet.candidates * 10:
            reservation = fleet.load.reserve(candidate, 5000, 5000, fleet.now)
            reservation.release(fleet.now + 60.0, learn=False)
        assert [fleet.rate(name) for name in FAST] == before


def samples_of(rates: list[float]) -> Samples:
    samples = Samples()
    for rate in rates:
        samples.add(Sample(1000, 1000 / rate, 0.0, 0.0), 1000 / rate)
    samples.sum_up()
    return samples


class TestEvidence:
    @given(st.lists(st.floats(10, 1e6), min_size=1, max_size=40))
    def test_the_speed_lies_within_the_middle_of_the_last_samples(
        self, rates: list[float]
    ) -> None:
        last = sorted(rates[-16:])
        trim = len(last) // 5
        middle = last[trim : len(last) - trim]
        samples = samples_of(rates)
        assert samples.count == len(last)
        assert 0.999 * middle[0] <= samples.speed <= 1.001 * middle[-1]

    def test_prompts_that_end_in_one_step_count_as_one(self) -> None:
        samples = Samples()
        samples.add(Sample(1000, 0.2, 0.0, 0.0), 0.1)
        samples.add(Sample(1000, 0.0, 0.0, 0.0), 0.1)
        samples.sum_up()
        assert (samples.count, samples.speed) == (1, pytest.approx(10_000))

    def test_what_the_load_explains_is_no_evidence(self) -> None:
        """Decodes and long contexts make every engine slow."""
        idle, busy = Samples(), Samples()
        for _ in range(16):
            idle.add(Sample(1000, 0.100, 0.0, 0.0), 0.1)
            busy.add(Sample(1000, 0.100 * 2 + 0.060, 30_000.0, 0.060), 0.2)
        for one in (idle, busy):
            one.sum_up()
        assert shrinks([idle, busy], [1.0, 1.0]) == [SHRINK_S, SHRINK_S]

    def test_old_evidence_counts_less(self) -> None:
        members = [samples_of([8000.0] * 16), samples_of([4000.0] * 16)]
        fresh, old = (shrinks(members, [1.0, fade])[1] for fade in (1.0, 1 / 16))
        assert fresh < 3.0
        assert old > 0.5 * SHRINK_S

    @given(st.lists(st.floats(100, 1e5), min_size=2, max_size=9))
    def test_k_is_never_more_and_never_nothing(self, rates: list[float]) -> None:
        members = [samples_of([rate] * 16) for rate in rates]
        for shrink_s in shrinks(members, [1.0] * len(members)):
            assert 2.0 <= shrink_s <= SHRINK_S


class TestInterTokenLine:
    def test_the_shape_of_another_engine_is_learned_from_streams(self) -> None:
        """A CPU engine, whose step grows with every stream in it."""
        line, rng = ItlLine(), Random(1)
        for _ in range(300):
            requests, context = rng.uniform(1, 16), rng.uniform(500, 20_000)
            itl_s = 0.020 + 0.015 * requests + 1e-6 * context
            line.learn(itl_s * rng.lognormvariate(0, 0.1), requests, context)
        line.fit()
        for requests, context in ((1, 1000), (8, 10_000), (16, 20_000)):
            truth = 0.020 + 0.015 * requests + 1e-6 * context
            assert line.itl_s(requests, context) == pytest.approx(truth, rel=0.25)

    def test_streams_under_one_load_move_the_level_and_not_the_shape(self) -> None:
        line = ItlLine()
        for _ in range(100):
            line.learn(0.030, 4, 8000)
        line.fit()
        assert line.itl_s(4, 8000) == pytest.approx(0.030, rel=0.01)
        assert line.token_s / line.base_s == pytest.approx(46e-9 / 6.5e-3, rel=0.05)

    @given(
        st.lists(
            st.tuples(st.floats(1e-6, 1e4), st.integers(1, 500), st.integers(0, 10**7)),
            min_size=1,
            max_size=60,
        )
    )
    def test_no_stream_makes_a_price_negative_or_endless(
        self, streams: list[tuple[float, int, int]]
    ) -> None:
        line = ItlLine()
        for stream in streams:
            line.learn(*stream)
            line.fit()
            assert min(line.base_s, line.request_s, line.token_s) >= 0
            assert 0 < line.itl_s(1, 1000) < 1e6


class TestLeastSquares:
    @given(
        st.lists(
            st.lists(st.floats(0, 10), min_size=3, max_size=3), min_size=3, max_size=9
        ),
        st.lists(st.floats(-10, 10), min_size=9, max_size=9),
    )
    def test_no_point_near_by_is_better(
        self, rows: list[list[float]], values: list[float]
    ) -> None:
        pairs = list(zip(rows, values, strict=False))
        gram = [
            [sum(r[i] * r[j] for r, _ in pairs) for j in range(3)] for i in range(3)
        ]
        target = [sum(r[i] * v for r, v in pairs) for i in range(3)]
        found = solve_nonnegative(gram, target)

        def loss(x: list[float]) -> float:
            return sum(
                (v - sum(a * b for a, b in zip(r, x, strict=True))) ** 2
                for r, v in pairs
            )

        least = loss(found)
        for at in range(3):
            for step in (-0.01, 0.01):
                near = found.copy()
                near[at] = max(0.0, near[at] + step)
                assert least <= loss(near) + 1e-6 * (1 + least)
