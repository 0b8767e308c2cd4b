import logging
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.policies.routing.base import Costs
from warmroute.proxy.ledger import OTHER, Ledger
from warmroute.proxy.ledger.decision import Decision, Roster
from warmroute.proxy.ledger.histogram import Histogram
from warmroute.proxy.ledger.tokens import TokenClasses, TokenTotals, classify

COUNT = st.integers(-50, 5000)


def roster(num: int = 3) -> Roster:
    names = [f"b{at}" for at in range(num)]
    states = ["up"] * num
    return Roster(names, states, ["mirror"] * num, range(num))


def decide(request_id: str = "r1", **changes: object) -> Decision:
    facts: dict[str, object] = {
        "time": 1000.0,
        "path": "/v1/completions",
        "model": "smol",
        "grade": "exact",
        "prompt_tokens": 100,
        "policy": "expected_ttft",
        "roster": roster(),
        "matched": [48, 64, 0],
        "index": 0,
        "reason": "prefix",
        "costs": [(0.0, 0.1, 0.2, 0.3), (1.0, 0.0, 0.5, 1.5), (0.0, 0.2, 0.3, 0.5)],
    }
    return Decision(request_id, **{**facts, **changes})  # type: ignore[arg-type]


def ledger(**limits: int) -> Ledger:
    made = Ledger(**limits)
    made.know_models(["smol"])
    return made


class TestClasses:
    @given(COUNT, COUNT, COUNT, COUNT, COUNT)
    def test_sum_to_the_prompt_whatever_the_claims(
        self, prompt: int, cached: int, predicted: int, best: int, seen: int
    ) -> None:
        """Classes are never negative and sum to the prompt's tokens."""
        classes = TokenClasses(*classify(prompt, cached, predicted, best, seen))
        assert min(classes) >= 0
        assert classes.prompt == max(prompt, 0)

    @given(st.integers(1, 500), st.data())
    def test_follow_the_definition_of_each_class(
        self, prompt: int, data: st.DataObject
    ) -> None:
        """Within bounds the classes equal their written definitions."""
        claim = st.integers(0, prompt)
        cached, predicted, best, seen = (data.draw(claim) for _ in range(4))
        classes = TokenClasses(*classify(prompt, cached, predicted, best, seen))
        assert classes.hit == cached
        assert classes.unpredicted == max(0, predicted - cached)
        assert classes.elsewhere == max(0, best - max(predicted, cached))
        assert classes.evicted == max(0, seen - max(best, predicted, cached))

    def test_paid_twice_leaves_out_hits_and_cold_tokens(self) -> None:
        """Only evicted, elsewhere and unpredicted tokens are paid twice."""
        assert TokenClasses(10, 20, 3, 4, 5).paid_twice == 12

    def test_ratio_is_zero_before_any_prompt(self) -> None:
        """No prompt, no division."""
        assert TokenTotals().paid_twice_ratio == 0.0


class TestHistogram:
    @given(st.lists(st.floats(0, 10)))
    def test_counts_like_a_naive_one(self, values: list[float]) -> None:
        """Each bound counts the values at or below it."""
        histogram = Histogram((0.5, 1.0, 5.0))
        for value in values:
            histogram.observe(value)
        expected = [
            (label, sum(value <= bound for value in values))
            for label, bound in [("0.5", 0.5), ("1.0", 1.0), ("5.0", 5.0)]
        ]
        assert [*expected, ("+Inf", len(values))] == histogram.cumulative()
        assert histogram.sum == pytest.approx(sum(values))
        assert histogram.count == len(values)


class TestDecision:
    def test_lists_every_backend_with_its_state(self) -> None:
        """A backend that is down is listed with blank numbers."""
        some = Roster(["a", "b", "c"], ["up", "down", "up"], ["mirror"] * 3, [2, 0])
        decision = decide(
            roster=some,
            matched=[32, 16],
            costs=[(0.0, 1.0, 2.0, 3.0), (4.0, 5.0, 6.0, 15.0)],
        )
        assert decision.explained()["candidates"] == [
            {
                "backend": "a",
                "state": "up",
                "view": "mirror",
                "matched_tokens": {"gpu": 16, "host": 0, "disk": 0},
                "cost": {"wait_s": 4.0, "miss_s": 5.0, "decode_s": 6.0, "total_s": 15},
            },
            {
                "backend": "b",
                "state": "down",
                "view": "mirror",
                "matched_tokens": {"gpu": 0, "host": 0, "disk": 0},
                "cost": dict.fromkeys(("wait_s", "miss_s", "decode_s", "total_s")),
            },
            {
                "backend": "c",
                "state": "up",
                "view": "mirror",
                "matched_tokens": {"gpu": 32, "host": 0, "disk": 0},
                "cost": {"wait_s": 0.0, "miss_s": 1.0, "decode_s": 2.0, "total_s": 3},
            },
        ]
        assert decision.chosen == "c"
        assert decision.predicted_tokens == 32

    def test_tiers_add_up_to_the_match(self) -> None:
        """Host and disk tokens are taken off the match to give the gpu's."""
        decision = decide(lower=[(16, 8), (0, 0), (0, 0)])
        first = decision.explained()["candidates"][0]
        assert first["matched_tokens"] == {"gpu": 24, "host": 16, "disk": 8}

    def test_a_policy_without_costs_gives_nulls(self) -> None:
        """Round robin prices nothing."""
        first = decide(costs=None).explained()["candidates"][0]
        assert first["cost"]["total_s"] is None

    def test_flat_costs_and_tuples_are_recorded_alike(self) -> None:
        """A third party's policy may give tuples, and a total of its own."""
        tuples = [(0.0, 0.1, 0.2, 0.3), (1.0, 0.0, 0.5, 9.5), (0.0, 0.2, 0.3, 0.5)]
        flat = Costs([number for cost in tuples for number in cost])
        explained = decide(costs=tuples).explained()
        assert explained == decide(costs=flat).explained()
        assert explained["candidates"][1]["cost"]["total_s"] == 9.5
        assert decide(costs=flat).costs[1] == tuples[1]

    def test_explained_has_no_outcome(self) -> None:
        """What is never sent has no end."""
        assert "outcome" not in decide().explained()

    def test_outcome_is_null_until_settled(self) -> None:
        """A record in flight says so."""
        books, decision = ledger(), decide()
        books.open(decision, 0.0)
        assert decision.record()["outcome"] is None
        books.settle(decision, status=200, duration_s=2.0, cached_tokens=32, ttft_s=0.5)
        assert decision.record()["outcome"] == {
            "status": 200,
            "error": None,
            "cached_tokens": 32,
            "predicted_tokens": 48,
            "difference": None,
            "output_tokens": None,
            "ttft_s": 0.5,
            "duration_s": 2.0,
            "tokens": {
                "hit": 32,
                "cold": 36,
                "evicted": 0,
                "elsewhere": 16,
                "unpredicted": 16,
            },
        }

    def test_long_client_text_is_cut(self) -> None:
        """A path or model as long as a head may be does not fill the ring."""
        decision = decide(path="/" * 60_000, model="m" * 60_000)
        assert (len(decision.path), len(decision.model or "")) == (256, 256)

    def test_repr_names_id_backend_reason_and_state(self) -> None:
        """repr reads like a log line."""
        assert repr(decide()) == "<Decision r1 b0 prefix open>"


class TestSettle:
    def test_only_the_first_call_counts(self) -> None:
        """Settling is idempotent: every exit may call it."""
        books, decision = ledger(), decide()
        books.open(decision, 0.0)
        books.settle(decision, status=200, duration_s=1.0, cached_tokens=48)
        books.settle(decision, status=502, duration_s=9.0, error="late")
        (flow,) = books.flows()
        assert (flow.codes, flow.in_flight, decision.error) == ({200: 1}, 0, None)

    def test_missing_report_takes_the_prediction_but_stays_null(self) -> None:
        """An engine without cached-token reports is believed to match the view."""
        books, decision = ledger(), decide()
        books.open(decision, 0.0)
        books.settle(decision, status=200, duration_s=1.0)
        (flow,) = books.flows()
        assert decision.tokens is not None
        assert (decision.tokens.hit, decision.cached_tokens) == (48, None)
        assert (flow.unreported, flow.cached_tokens) == (1, 0)

    def test_engine_count_replaces_ours(self) -> None:
        """The classes sum to the prompt tokens that the record shows."""
        books, decision = ledger(), decide()
        books.open(decision, 0.0)
        books.settle(decision, status=200, duration_s=1.0, prompt_tokens=130)
        assert decision.tokens is not None
        assert decision.prompt_tokens == decision.tokens.prompt == 130

    def test_an_estimated_length_is_no_wrong_view(self) -> None:
        """Estimated claims are scaled by the engine's count before comparison."""
        books = ledger()
        decision = decide(grade="estimated", prompt_tokens=1100, matched=[550, 0, 0])
        books.open(decision, 0.0)
        books.settle(
            decision,
            status=200,
            duration_s=1.0,
            seen_tokens=1100,
            prompt_tokens=1000,
            cached_tokens=500,
        )
        assert decision.tokens == TokenClasses(500, 8, 492, 0, 0)

    @pytest.mark.parametrize(
        ("matched", "expected"), [(550, 500), (1099, 992), (1200, 992)]
    )
    def test_an_estimated_prediction_is_reported_in_the_engines_tokens(
        self, matched: int, expected: int
    ) -> None:
        """Scaled by the engine's count, and never more than it could cache."""
        books = ledger()
        decision = decide(
            grade="estimated", prompt_tokens=1100, matched=[matched, 0, 0]
        )
        books.open(decision, 0.0)
        books.settle(decision, status=200, duration_s=1.0, prompt_tokens=1000)
        assert decision.record()["outcome"]["predicted_tokens"] == expected
        assert decision.record()["candidates"][0]["matched_tokens"]["gpu"] == matched

    def test_rounding_of_an_estimate_is_cold(self) -> None:
        """Less than a block of the engine and one of text says nothing."""
        for beyond, paid in [(79, 0), (80, 80)]:
            books = ledger()
            decision = decide(
                grade="estimated", prompt_tokens=1000, matched=[512, 0, 0]
            )
            books.open(decision, 0.0)
            books.settle(
                decision,
                status=200,
                duration_s=1.0,
                seen_tokens=512 + beyond,
                cached_tokens=512,
            )
            assert decision.tokens is not None
            assert (decision.tokens.evicted, decision.tokens.paid_twice) == (paid, paid)

    def test_the_last_token_of_a_prompt_is_never_evicted(self) -> None:
        """Of 160 tokens an engine with blocks of 16 can have 144 at most."""
        books = ledger()
        decision = decide(prompt_tokens=160, matched=[144, 160, 0])
        books.open(decision, 0.0)
        books.settle(
            decision, status=200, duration_s=1.0, seen_tokens=160, cached_tokens=144
        )
        assert decision.tokens == TokenClasses(144, 16, 0, 0, 0)

    def test_the_bound_is_that_of_the_chosen_backend(self) -> None:
        """Blocks of 64 leave more of the prompt's end uncached than blocks of 1."""
        for index, cold in [(0, 32), (1, 1), (2, 16)]:
            mixed = Roster(["a", "b", "c"], [""] * 3, [""] * 3, range(3), [64, 1, None])
            books = ledger()
            decision = decide(
                prompt_tokens=160, matched=[128, 159, 144], index=index, roster=mixed
            )
            books.open(decision, 0.0)
            books.settle(decision, status=200, duration_s=1.0, seen_tokens=160)
            assert decision.tokens is not None
            assert (decision.tokens.cold, decision.tokens.paid_twice) == (cold, 0)

    def test_an_unanswered_request_has_no_classes(self) -> None:
        """What no engine computed was neither hit nor paid."""
        books, decision = ledger(), decide()
        books.open(decision, 0.0)
        books.settle(decision, status=502, duration_s=1.0, error="refused")
        assert decision.tokens is None
        assert books.totals.snapshot().prompt == 0

    def test_a_client_gone_after_its_first_token_is_counted(self) -> None:
        """The prefill was done by then."""
        books, decision = ledger(), decide()
        books.open(decision, 0.0)
        books.settle(decision, status=499, duration_s=1.0, ttft_s=0.1)
        assert books.totals.snapshot().prompt == 100

    def test_listeners_see_the_settled_record(self) -> None:
        """A listener is called once, with the outcome known."""
        books, decision = ledger(), decide()
        seen: list[int | None] = []
        books.listeners.append(lambda record: seen.append(record.status))
        books.open(decision, 0.0)
        books.settle(decision, status=200, duration_s=1.0)
        books.settle(decision, status=200, duration_s=1.0)
        assert seen == [200]

    def test_a_failing_listener_harms_no_request(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its exception is logged and the other listeners still hear."""
        books, decision = ledger(), decide()
        seen: list[str] = []

        def broken(record: Decision) -> None:
            raise RuntimeError("broken")

        books.listeners += [broken, lambda record: seen.append(record.request_id)]
        books.open(decision, 0.0)
        books.settle(decision, status=200, duration_s=1.0)
        assert seen == ["r1"]
        assert "listener_failed" in caplog.messages

    def test_reopening_moves_the_request(self) -> None:
        """A retry leaves one backend and enters the other, with its prediction."""
        books, decision = ledger(), decide()
        books.open(decision, 0.0)
        books.reopen(decision, 1, "refused")
        in_flight = {flow.backend: flow.in_flight for flow in books.flows()}
        assert in_flight == {"b0": 0, "b1": 1}
        assert (decision.chosen, decision.predicted_tokens) == ("b1", 64)
        assert (decision.attempts, books.retries) == (2, {"refused": 1})

    def test_a_reopened_request_is_counted_as_a_choice_again(self) -> None:
        """Each attempt is one request sent."""
        books, decision = ledger(), decide()
        books.open(decision, 0.0)
        books.reopen(decision, 1, "refused")
        assert books.choices == {
            ("expected_ttft", "prefix", "b0"): 1,
            ("expected_ttft", "prefix", "b1"): 1,
        }

    def test_own_errors_are_warned_of_once_a_second(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A flood of the same error is one line a second with a count."""
        books = ledger()
        for at, time in enumerate([1000.0, 1000.2, 1000.4, 1001.5]):
            decision = decide(f"r{at}", time=time)
            books.open(decision, 0.0)
            books.settle(decision, status=502, duration_s=0.0, error="refused")
        records = [r for r in caplog.records if r.message == "request_failed"]
        assert [r.__dict__["suppressed"] for r in records] == [0, 2]

    def test_success_is_quiet_at_info_and_one_line_at_debug(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The access line is for debugging."""
        books = ledger()
        for level, expected in [(logging.INFO, 0), (logging.DEBUG, 1)]:
            caplog.clear()
            caplog.set_level(level)
            decision = decide()
            books.open(decision, 0.0)
            books.settle(decision, status=200, duration_s=1.0)
            assert len(caplog.records) == expected


class TestRing:
    def test_keeps_the_newest_records(self) -> None:
        """The oldest record goes when there are too many."""
        books = ledger(max_records=2)
        for name in "abc":
            books.open(decide(name), 0.0)
        assert [d.request_id for d in books.newest()] == ["c", "b"]
        assert books.find("a") is None
        assert books.find("c") is not None

    def test_newest_of_a_reused_id_is_found(self) -> None:
        """A client that repeats its id sees its last request."""
        books = ledger(max_records=2)
        first, second = decide("same"), decide("same")
        books.open(first, 0.0)
        books.open(second, 0.0)
        books.open(decide("next"), 0.0)
        assert books.find("same") is second
        books.open(decide("last"), 0.0)
        assert books.find("same") is None

    def test_bytes_bound_the_ring_too(self) -> None:
        """Large fleets make large records: fewer are kept."""
        size = decide("a").size_bytes
        books = ledger(max_bytes=3 * size)
        for name in "abcde":
            books.open(decide(name), 0.0)
        assert len(books) == 3
        assert books.size_bytes == 3 * size

    def test_a_record_pushed_out_can_still_be_settled(self) -> None:
        """Counts do not depend on the ring."""
        books = ledger(max_records=1)
        first = decide("a")
        books.open(first, 0.0)
        books.open(decide("b"), 0.0)
        books.settle(first, status=200, duration_s=1.0)
        assert sum(sum(flow.codes.values()) for flow in books.flows()) == 1
        assert books.flows()[0].in_flight == 1

    @pytest.mark.parametrize("num", [1, 8, 64])
    def test_estimate_of_bytes_is_near_the_truth(self, num: int) -> None:
        """The estimate is no less than 0.7 and no more than 1.6 of the real size."""
        books, some = ledger(), roster(num)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for at in range(500):
            decision = decide(
                f"{at:032x}",
                roster=some,
                matched=[at + 1000 + i for i in range(num)],
                costs=[(at + i, 0.5, 0.5, 0.7) for i in range(num)],
            )
            books.open(decision, 0.0)
            books.settle(decision, status=200, duration_s=at + 0.5, ttft_s=at + 0.1)
        used = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert 0.7 <= books.size_bytes / used <= 1.6


class TestLabels:
    def test_a_clients_model_is_no_label(self) -> None:
        """Only models that backends announced get series of their own."""
        books = ledger()
        for at in range(100):
            books.open(decide(f"r{at}", model=f"made-up-{at}"), 0.0)
        assert {flow.model for flow in books.flows()} == {OTHER}

    def test_models_are_bounded(self) -> None:
        """A backend that announces adapters without end fills no memory."""
        books = ledger()
        books.know_models(f"lora-{at}" for at in range(1000))
        for at in range(1000):
            books.open(decide(f"r{at}", model=f"lora-{at}"), 0.0)
        assert len({flow.model for flow in books.flows()}) <= 256

    def test_an_unknown_reason_is_other(self) -> None:
        """A third party's policy cannot make labels at will."""
        books = ledger()
        books.open(decide(reason="because-17"), 0.0)
        assert books.choices == {("expected_ttft", OTHER, "b0"): 1}

    def test_forgetting_a_backend_keeps_the_totals(self) -> None:
        """Its series go, what it served stays in the sums."""
        books, decision = ledger(), decide()
        books.open(decision, 0.0)
        books.settle(decision, status=200, duration_s=1.0, cached_tokens=48)
        books.forget_backend("b0")
        assert books.flows() == []
        assert books.choices == {}
        assert books.totals.hit == 48

    def test_a_request_that_outlives_its_backend_is_in_the_totals(self) -> None:
        """A drained backend's last answers come after its series have gone."""
        books, early, late = ledger(), decide("early"), decide("late")
        books.open(early, 0.0)
        books.open(late, 0.0)
        books.settle(early, status=200, duration_s=1.0, cached_tokens=48)
        books.forget_backend("b0")
        assert books.totals.snapshot().prompt == 100
        books.settle(late, status=200, duration_s=1.0, cached_tokens=16)
        books.forget_backend("b1")
        for _ in range(2):
            assert books.totals.snapshot().prompt == 200
            assert books.totals.hit == 64
        assert books.flows() == []

    def test_choices_are_summed_over_models(self) -> None:
        """The metric has no model label."""
        books = ledger()
        for name in ("smol", "smol", "unknown", None):
            books.open(decide(model=name), 0.0)
        assert len(books.flows()) == 2
        assert books.choices == {("expected_ttft", "prefix", "b0"): 4}

    def test_repr_counts_records(self) -> None:
        """repr tells how full the ring is."""
        books = ledger()
        books.open(decide(), 0.0)
        assert repr(books).startswith("<Ledger records=1 bytes=")
