"""The circuit breaker against its table, and against a naive model."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.proxy.fleet.breaker import JITTER, MAX_BACKOFF, Breaker

FAILURES = 3
OPEN_S = 10.0


def make(state: str = "closed", draw: float = 0.0) -> Breaker:
    """Bring a breaker into a state, at time 0."""
    breaker = Breaker(FAILURES, OPEN_S, lambda: draw)
    if state != "closed":
        for _ in range(FAILURES):
            breaker.fail(0.0)
    if state == "half_open":
        assert breaker.offer(OPEN_S)
    assert breaker.state == state
    return breaker


EVENTS: dict[str, Any] = {
    "fail": lambda breaker: breaker.fail(0.0),
    "fail, must not open": lambda breaker: breaker.fail(0.0, may_open=False),
    "three failures": lambda breaker: [breaker.fail(0.0) for _ in range(FAILURES)],
    "success": Breaker.succeed,
    "progress": Breaker.progress,
    "probe": Breaker.passed,
    "time is over": lambda breaker: breaker.offer(OPEN_S),
    "time is not over": lambda breaker: breaker.offer(OPEN_S - 0.1),
    "trial": lambda breaker: breaker.take(OPEN_S),
    "abandon": Breaker.abandon,
}

TABLE = [
    ("closed", "fail", "closed"),
    ("closed", "three failures", "open"),
    ("closed", "success", "closed"),
    ("closed", "progress", "closed"),
    ("closed", "probe", "closed"),
    ("closed", "time is over", "closed"),
    ("closed", "trial", "closed"),
    ("closed", "abandon", "closed"),
    ("open", "fail", "open"),
    ("open", "success", "closed"),
    ("open", "progress", "open"),
    ("open", "probe", "half_open"),
    ("open", "time is over", "half_open"),
    ("open", "time is not over", "open"),
    ("open", "trial", "open"),
    ("open", "abandon", "open"),
    ("half_open", "fail", "open"),
    ("half_open", "fail, must not open", "closed"),
    ("half_open", "success", "closed"),
    ("half_open", "progress", "half_open"),
    ("half_open", "probe", "half_open"),
    ("half_open", "trial", "half_open"),
    ("half_open", "abandon", "half_open"),
]


@pytest.mark.parametrize(("before", "event", "after"), TABLE)
def test_moves_as_the_table_says(before: str, event: str, after: str) -> None:
    breaker = make(before)
    EVENTS[event](breaker)
    assert breaker.state == after


def test_only_consecutive_failures_open_it() -> None:
    breaker = make()
    for calm in (breaker.succeed, breaker.progress):
        for _ in range(FAILURES - 1):
            breaker.fail(0.0)
        calm()
    breaker.fail(0.0)
    assert repr(breaker) == "<Breaker closed [failures: 1/3]>"


def test_stays_closed_while_it_must_not_open_and_opens_once_it_may() -> None:
    breaker = make()
    for _ in range(10):
        assert not breaker.fail(0.0, may_open=False)
    assert breaker.admits(0.0)
    assert breaker.fail(0.0)


def test_lets_exactly_one_request_through_half_open() -> None:
    breaker = make("half_open")
    assert breaker.admits(OPEN_S)
    assert breaker.take(OPEN_S)
    assert not breaker.admits(OPEN_S)
    assert not breaker.take(OPEN_S)


def test_offers_the_trial_again_when_abandoned_or_overdue() -> None:
    breaker = make("half_open")
    breaker.take(100.0)
    assert breaker.abandon()
    assert breaker.take(100.0)
    assert not breaker.admits(100.0 + OPEN_S - 0.1)
    assert breaker.admits(100.0 + OPEN_S)


def test_backs_off_exponentially_up_to_a_cap_and_starts_over_after_success() -> None:
    breaker = make("half_open")
    waits = []
    for _ in range(7):
        breaker.fail(0.0)
        waits.append(breaker.until / OPEN_S)
        breaker.offer(breaker.until)
    assert waits == [2, 4, 8, MAX_BACKOFF, MAX_BACKOFF, MAX_BACKOFF, MAX_BACKOFF]
    breaker.succeed()
    EVENTS["three failures"](breaker)
    assert breaker.until == OPEN_S


def test_adds_jitter_to_the_time_it_stays_open() -> None:
    assert make("open", draw=0.5).until == pytest.approx(OPEN_S * (1 + JITTER / 2))


def test_a_probe_has_no_say_after_a_failed_trial() -> None:
    breaker = make("half_open")
    breaker.fail(0.0)
    assert not breaker.passed()
    assert breaker.state == "open"


class NaiveBreaker:
    """A fake that keeps the whole history instead of a state."""

    def __init__(self) -> None:
        self.streak: list[str] = []
        self.opened_at: float | None = None

    def allows(self, now: float) -> bool:
        return self.opened_at is None or now >= self.opened_at + OPEN_S

    def note(self, event: str, now: float) -> None:
        if event == "success":
            self.streak, self.opened_at = [], None
        elif self.opened_at is None:
            self.streak.append(event)
            if len(self.streak) >= FAILURES:
                self.opened_at = now


@given(
    st.lists(st.tuples(st.sampled_from(["success", "fail"]), st.floats(0, OPEN_S / 4)))
)
def test_agrees_with_a_naive_model_until_the_first_trial(
    steps: list[tuple[str, float]],
) -> None:
    breaker, naive, now = make(), NaiveBreaker(), 0.0
    for event, delay_s in steps:
        now += delay_s
        if naive.opened_at is not None and naive.allows(now):
            break
        naive.note(event, now)
        breaker.succeed() if event == "success" else breaker.fail(now)
        assert breaker.admits(now) is naive.allows(now)


@given(
    st.lists(st.sampled_from(sorted(EVENTS)), max_size=40),
    st.floats(0, 1, exclude_max=True),
)
def test_holds_its_invariants_under_any_events(events: list[str], draw: float) -> None:
    """Whatever happens: success closes, and an end of the waiting is in sight."""
    breaker = Breaker(FAILURES, OPEN_S, lambda: draw)
    for event in events:
        EVENTS[event](breaker)
        assert breaker.state in ("closed", "open", "half_open")
        if breaker.state == "closed":
            assert breaker.admits(0.0)
        longest_s = OPEN_S * MAX_BACKOFF * (1 + JITTER) + OPEN_S
        assert breaker.admits(longest_s)
    breaker.succeed()
    assert breaker.is_calm()
