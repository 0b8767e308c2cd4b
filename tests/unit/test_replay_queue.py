"""The router's queue in a replay: its own order, and nobody is left out."""

from collections.abc import Sequence

import pytest
from unit.replay_rig import ask, setting, trace_of
from unit.test_replay import BUSY
from unit.test_replay_batching import batching, busy_trace

from warmroute.policies.routing.base import Candidate, Choice, Query
from warmroute.proxy.replay.arrival import Arrival, OpenLoop
from warmroute.proxy.replay.comparison import Comparison
from warmroute.proxy.replay.fleets import build_policy
from warmroute.proxy.replay.held_queues import HeldQueues
from warmroute.proxy.replay.holding import Holding
from warmroute.proxy.replay.intent import Intent
from warmroute.proxy.replay.routed import RoutedFleet
from warmroute.proxy.replay.served import Served
from warmroute.proxy.replay.setting import Setting
from warmroute.proxy.replay.tally import Tally
from warmroute.proxy.replay.trace import Trace, TraceRequest


def mean_ttft(trace: Trace, where: Setting) -> float:
    (outcome,), _ = Comparison(trace, where).run(["expected_ttft"], with_oracles=False)
    assert outcome.figures.requests == len(trace.requests)
    assert outcome.figures.lost == 0
    return outcome.figures.ttft_mean_s


def test_the_shorter_goes_first_and_pays_no_more_than_a_look() -> None:
    """While 4 s are computed 3 s come, then 1 s: it waits 2 s, they wait 4 s.

    There is room when half a second of the first is left.
    """
    trace = trace_of(ask(0.0, 4000), ask(1.0, 3000), ask(2.0, 1000))
    in_turn = mean_ttft(trace, setting(queue="arrival"))
    shortest = mean_ttft(trace, setting(queue="shortest_uncached"))
    assert in_turn == pytest.approx((4 + 6 + 6) / 3, abs=0.1)
    assert shortest == pytest.approx((4 + 3 + 7) / 3, abs=0.1)
    assert mean_ttft(trace, setting()) == pytest.approx((4 + 6 + 6) / 3)


def test_without_load_nothing_is_held() -> None:
    trace = trace_of(ask(0.0, 400), ask(9.0, 300), ask(20.0, 100))
    held = mean_ttft(trace, setting(2, queue="shortest_uncached"))
    assert held == pytest.approx(mean_ttft(trace, setting(2)))


@pytest.mark.parametrize("order", ["shortest_uncached", "arrival"])
def test_everybody_is_served_by_both_engine_models(order: str) -> None:
    assert mean_ttft(BUSY, setting(2, queue=order, jitter_s=2.0)) > 0
    assert mean_ttft(busy_trace(1), batching(queue=order, backends=2)) > 0


def test_what_is_held_for_an_engine_that_dies_goes_elsewhere() -> None:
    where = batching(backends=2, dies_at={0: 15.0}, queue="shortest_uncached")
    (outcome,), _ = Comparison(busy_trace(4), where).run(
        ["expected_ttft"], with_oracles=False
    )
    assert outcome.figures.requests + outcome.figures.lost == 120
    assert outcome.figures.backend_requests[1] > 60


class Turns:
    """Stands in for a policy that does not see what is held, and counts."""

    name = "turns"

    def __init__(self) -> None:
        self.count = 0

    def choose(self, query: Query, candidates: Sequence[Candidate]) -> Choice:
        self.count += 1
        return Choice(self.count % len(candidates), "load")


def play(server: RoutedFleet, trace: Trace) -> list[int]:
    """Play *trace* in order of arrival; returns the requests of each engine."""
    tally = Tally(len(server.candidates))
    workload = OpenLoop(trace, 1.0, 0.0, None)  # type: ignore[arg-type]
    HeldQueues(server, "arrival").play(workload, tally, lambda: None)
    return list(tally.figures().backend_requests)


def test_what_is_held_is_chosen_for_once() -> None:
    """Asked again at the head of each line, it would send them from line to line."""
    trace = trace_of(*(ask(float(at), 4000) for at in range(9)))
    policy = Turns()
    assert play(RoutedFleet(policy, setting(3), trace.block_size), trace) == [3, 3, 3]
    assert policy.count == 9


class FailsOnSecond(RoutedFleet):
    """Stands in for a fleet with a fault."""

    def send(self, request: TraceRequest, intent: Intent, now: float) -> Served:
        if self.candidates[0].requests:
            raise RuntimeError("second")
        return super().send(request, intent, now)


def test_what_fails_when_it_is_sent_fails_the_replay() -> None:
    """The queue of the proxy would log it and go on, with one request fewer."""
    trace = trace_of(ask(0.0, 4000, output=200), ask(1.0, 3000))
    fleet = FailsOnSecond(Turns(), setting(), trace.block_size)
    with pytest.raises(RuntimeError, match="second"):
        play(fleet, trace)


class FailsOnThird(Turns):
    """Stands in for a policy with a fault."""

    def choose(self, query: Query, candidates: Sequence[Candidate]) -> Choice:
        if self.count == 2:
            raise RuntimeError("third")
        return super().choose(query, candidates)


def test_a_policy_that_fails_fails_the_replay() -> None:
    trace = trace_of(ask(0.0, 4000), ask(1.0, 3000), ask(2.0, 3000))
    with pytest.raises(RuntimeError, match="third"):
        play(RoutedFleet(FailsOnThird(), setting(), trace.block_size), trace)


def test_objects_say_what_they_are() -> None:
    server = RoutedFleet(build_policy("random", 0), setting(), 512)
    fleet = HeldQueues(server, "arrival")
    assert repr(fleet) == "<HeldQueues arrival before <RoutedFleet random, 1 engines>>"
    holding = Holding("arrival", _Nobody(), server.candidates)  # type: ignore[arg-type]
    assert repr(holding) == "<Holding <HoldQueue arrival 0 held>>"


class _Nobody:
    """Stands in for a planner that is not asked."""

    def plan(self, arrival: Arrival, now: float) -> None:
        raise AssertionError

    def send(self, arrival: Arrival, intent: object, now: float) -> None:
        raise AssertionError

    def catch_up(self, now: float) -> None:
        raise AssertionError
