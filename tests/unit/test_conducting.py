"""What the conductor decides, from turns at given times: no engine, no clock."""

from math import exp, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.policies.conducting.gaps import BOUNDS, MAX_KINDS, Gaps, bucket
from warmroute.policies.conducting.item import Item, Shared, Talk, Turn, Wish
from warmroute.policies.conducting.plan import MAX_ITEMS, Plan
from warmroute.policies.conducting.pressure import Pressure

SIZE = 16


def turn(now: float, backend: str = "a", **changes: object) -> Turn:
    facts: dict[str, object] = {
        "tail": 1,
        "blocks": 20,
        "block_tokens": SIZE,
        "seen_blocks": 0,
        "before": None,
        "ends": (),
        "fresh_tokens": 320,
        "cached_tokens": 0,
        "duration_s": 1.0,
    }
    return Turn(now, backend, **{**facts, **changes})  # type: ignore[arg-type]


class TestGaps:
    def test_nobody_ever_came_back(self) -> None:
        gaps = Gaps()
        for at in range(len(BOUNDS)):
            gaps.waited(at, 100.0)
        assert gaps.hazard(1.0) == gaps.index(0.0) == gaps.chance(0.0, 1e6) == 0.0

    def test_the_hazard_is_returns_a_second(self) -> None:
        gaps = Gaps()
        at = bucket(1.0)
        gaps.waited(at, 50.0)
        for _ in range(10):
            gaps.came(at)
        assert gaps.hazard(1.0) == pytest.approx(0.2)
        assert gaps.hazard(BOUNDS[at] + 1.0) == 0.0

    def test_the_index_looks_past_a_time_in_which_nobody_comes(self) -> None:
        """All come between 10 and 12 s: worth keeping at 9 s, and not at 1 s."""
        gaps, far = Gaps(), bucket(11.0)
        for at in range(far):
            gaps.waited(at, 100.0)
        gaps.waited(far, 10.0)
        for _ in range(50):
            gaps.came(far)
        assert gaps.hazard(5.0) == 0.0
        assert 0.0 < gaps.index(1.0) < gaps.index(6.0) < gaps.index(BOUNDS[far - 1])
        assert gaps.index(BOUNDS[far - 1]) <= gaps.hazard(11.0)
        assert gaps.index(BOUNDS[far] + 0.1) == 0.0

    def test_the_prior_stands_in_until_there_is_enough(self) -> None:
        every = Gaps()
        every.waited(3, 100.0)
        for _ in range(50):
            every.came(3)
        away = BOUNDS[3] - 0.01
        mine = Gaps(every)
        assert mine.hazard(away) == pytest.approx(0.5)
        mine.waited(3, 8.0 * (BOUNDS[3] - BOUNDS[2]))
        assert mine.hazard(away) == pytest.approx(0.25)

    def test_old_returns_are_forgotten_by_halves(self) -> None:
        gaps = Gaps()
        gaps.waited(2, 1000.0)
        for _ in range(400):
            gaps.came(2)
        before = gaps.hazard(BOUNDS[1])
        gaps.came(2)
        gaps.waited(2, 500.0)
        assert gaps.hazard(BOUNDS[1]) < 0.6 * before

    @given(
        st.lists(
            st.tuples(st.integers(0, 20), st.floats(0.1, 50), st.integers(0, 9)),
            max_size=20,
        ),
        st.floats(0, 1000),
        st.floats(0.01, 50),
    )
    def test_numbers_agree_with_small_steps(
        self, facts: list[tuple[int, float, int]], away: float, within: float
    ) -> None:
        """The chance is that of a walk over buckets; some hazard is above the index."""
        gaps = Gaps()
        for at, seconds, came in facts:
            gaps.waited(at, seconds)
            for _ in range(came):
                gaps.came(at)
        alive = 1.0
        for start, end in zip((0.0, *BOUNDS), BOUNDS, strict=False):
            seconds = min(end, away + within) - max(start, away)
            alive *= exp(-gaps.hazard((start + end) / 2) * max(seconds, 0.0))
        assert gaps.chance(away, within) == pytest.approx(1 - alive, abs=1e-6)
        index = gaps.index(away)
        assert index >= 0.0
        later = (one for one in BOUNDS if one > away)
        most = max((gaps.hazard(one - 1e-6) for one in later), default=0.0)
        assert index <= most + 1e-9


class TestPressure:
    def test_without_writes_or_size_blocks_live_for_ever(self) -> None:
        pressure = Pressure()
        assert pressure.lifetime_s(0.0) == inf
        pressure.wrote(100, 0.0)
        assert pressure.lifetime_s(1.0) == inf
        pressure.capacity = 1000
        assert pressure.lifetime_s(1.0) < inf

    def test_a_steady_stream_writes_the_pool_over(self) -> None:
        pressure = Pressure()
        pressure.capacity = 10_000
        for second in range(100):
            pressure.wrote(500, float(second))
        assert pressure.lifetime_s(99.0) == pytest.approx(20, rel=0.1)
        pressure.held = 5000
        assert pressure.lifetime_s(99.0) == pytest.approx(10, rel=0.1)
        assert pressure.lifetime_s(400.0) > 1e6


def learned(plan: Plan, gap_s: float, rounds: int = 30, kind: int = 7) -> float:
    """Let conversations of one kind come back after *gap_s* once; returns the time."""
    now = 0.0
    for at in range(rounds):
        tail = 1000 + 2 * at
        start = {"before": kind, "seen_blocks": 4}
        plan.observe(turn(now, tail=tail, **start))
        for wait in range(1, 20):
            plan.due(now + gap_s * wait / 20)
        now += gap_s
        plan.observe(
            turn(
                now,
                tail=tail + 1,
                blocks=24,
                before=tail,
                seen_blocks=20,
                ends=(tail,),
            )
        )
        plan.due(now)
    return now


def made(capacity: int = 4000, **options: object) -> Plan:
    facts = {"min_tokens": 64, "retained_share": 0.5, **options}
    plan = Plan(**facts)  # type: ignore[arg-type]
    plan.pool("a").capacity = capacity
    plan.pool("b").capacity = capacity
    return plan


def wishes_until(plan: Plan, start: float, end: float) -> list[Wish]:
    """Ask four times a second what is due."""
    found: list[Wish] = []
    now = start
    while now < end:
        now += 0.25
        found += plan.due(now)
    return found


def of_tail(wishes: list[Wish], tail: int) -> list[str]:
    return [one.kind for one in wishes if one.item.tail == tail]


class TestPlan:
    def test_what_comes_back_late_is_retained_in_time(self) -> None:
        """Chats come after 8 s; the pool is written over in less."""
        plan = made()
        now = learned(plan, 8.0)
        plan.observe(turn(now, tail=5, before=7, seen_blocks=4))
        for at in range(12):
            plan.observe(turn(now + at / 2, tail=90_000 + at, fresh_tokens=500))
        found = wishes_until(plan, now, now + 7.0)
        assert "retain" in of_tail(found, 5)
        first = next(one for one in found if one.item.tail == 5)
        assert first.kind == "retain"
        assert first.ttl_s > 0
        assert "kept" in first.reason

    def test_nothing_is_done_where_nothing_is_written_over(self) -> None:
        plan = made(capacity=10**9)
        now = learned(plan, 8.0)
        plan.observe(turn(now, tail=5, before=7, seen_blocks=4))
        kinds = {one.kind for one in wishes_until(plan, now, now + 60)}
        assert not kinds & {"retain", "demote"}

    def test_a_fleet_that_sees_no_prompt_twice_is_left_alone(self) -> None:
        """The hostile case: no index, no price, no action."""
        plan = made()
        for at in range(500):
            plan.observe(turn(at / 5, tail=at + 100, fresh_tokens=900))
            assert plan.due(at / 5) == []
        assert wishes_until(plan, 100.0, 130.0) == []

    def test_what_is_done_with_is_given_up_for_what_comes_back(self) -> None:
        """Of two kinds, one comes back and the other never does; the pool is small."""
        plan = made(capacity=2000)
        now = learned(plan, 4.0)
        for at in range(80):
            now += 0.5
            plan.observe(turn(now, tail=7000 + at, before=9, seen_blocks=4))
            plan.due(now)
        plan.observe(turn(now, tail=5, before=7, seen_blocks=4))
        plan.observe(turn(now, tail=6, before=9, seen_blocks=4))
        found = wishes_until(plan, now, now + 3.5)
        assert "demote" in of_tail(found, 6)
        assert "demote" not in of_tail(found, 5)
        assert of_tail(found, 6).count("demote") >= 1

    def test_the_copy_that_a_conversation_leaves_behind_is_given_up(self) -> None:
        plan = made()
        plan.observe(turn(0.0, tail=1))
        plan.observe(turn(1.0, "b", tail=2, blocks=30, ends=(1,), seen_blocks=20))
        (wish,) = plan.due(1.0)
        assert (wish.kind, wish.backend, wish.item.tail) == ("demote", "a", 1)
        assert "elsewhere" in wish.reason

    def test_a_conversation_is_known_again_by_where_its_prompt_ended(self) -> None:
        """Its answer was cached as well, so that the index goes beyond that."""
        plan = made()
        plan.observe(turn(0.0, tail=1))
        later = {"before": 99, "seen_blocks": 22, "ends": (98, 1)}
        plan.observe(turn(1.0, tail=2, blocks=30, **later))
        assert len(plan) == 1

    def test_no_more_is_retained_than_the_share_allows(self) -> None:
        """What its engine holds counts, whatever became of the items."""
        plan = made(retained_share=0.25)
        pool = plan.pool("a")
        item = Talk(turn(0.0, tail=1), 0)
        for held, has_room in [(0, True), (1000, True), (1001, False)]:
            pool.held = held
            assert plan._has_room(item, pool) is has_room
        item.own_blocks = 63
        pool.held = 0
        assert not plan._has_room(item, pool)  # 1008 tokens, of 1000

    def test_what_waits_on_the_host_is_wished_for_before_it_is_due(self) -> None:
        plan = made(capacity=10**9)
        now = learned(plan, 8.0)
        plan.pool("a").capacity = None
        plan.observe(turn(now, tail=5, before=7, seen_blocks=4))
        found = wishes_until(plan, now, now + 8.0)
        assert set(of_tail(found, 5)) == {"restore"}
        assert all("due" in one.reason for one in found if one.item.tail == 5)

    def test_a_prefix_that_many_are_busy_with_is_worth_a_copy(self) -> None:
        plan = made()
        for at in range(12):
            plan.observe(
                turn(at / 2, tail=100 + at, before=3, seen_blocks=10, duration_s=2.0)
            )
        hot = [one for one in plan.due(5.5) if one.kind == "replicate"]
        assert hot
        assert isinstance(hot[-1].item, Shared)
        assert hot[-1].item.tail == 3
        assert hot[-1].item.concurrency > 1.0

    def test_a_prefix_that_few_use_is_not_copied(self) -> None:
        plan = made()
        for at in range(12):
            plan.observe(turn(at * 10.0, tail=100 + at, before=3, seen_blocks=10))
        assert not [one for one in plan.due(111.0) if one.kind == "replicate"]

    def test_use_after_an_action_is_told(self) -> None:
        told: list[tuple[Item, Turn]] = []
        plan = Plan(64, 0.5, lambda item, one: told.append((item, one)))
        plan.observe(turn(0.0, tail=1))
        plan.observe(turn(1.0, tail=2, ends=(1,), seen_blocks=20))
        assert [item.tail for item, _ in told] == [1]

    def test_memory_is_bounded(self) -> None:
        plan = made()
        for at in range(MAX_ITEMS + 500):
            plan.observe(turn(at / 1000, tail=at, before=-at, seen_blocks=1))
        assert len(plan) <= MAX_ITEMS
        assert len(plan._kinds) <= MAX_KINDS
        assert len(plan._heap) <= 4 * MAX_ITEMS + 65

    def test_a_backend_that_goes_is_forgotten(self) -> None:
        plan = made()
        plan.observe(turn(0.0, tail=1))
        plan.observe(turn(0.0, "b", tail=2))
        plan.forget("a")
        assert len(plan) == 1
        assert plan.shared("a", 1) is None
        assert "Plan" in repr(plan)

    def test_what_stays_away_is_forgotten_in_the_end(self) -> None:
        plan = made()
        plan.observe(turn(0.0, tail=1))
        plan.due(BOUNDS[-1] + 1.0)
        for _ in BOUNDS:
            plan.due(2 * BOUNDS[-1])
        assert len(plan) == 0
