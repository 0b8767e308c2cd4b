"""What open pages are told: bounded, made once for all, and harmless to others."""

import asyncio
import json
import random
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.policies.errors import ClientError
from warmroute.policies.kv.trunks import Survey
from warmroute.proxy.dashboard.advice import advise
from warmroute.proxy.dashboard.assets import HEADERS, PAGE, read_assets
from warmroute.proxy.dashboard.changes import changes
from warmroute.proxy.dashboard.decisions import MAX_DECISIONS, Newest
from warmroute.proxy.dashboard.history import MAX_SAMPLES, History
from warmroute.proxy.dashboard.pulse import MAX_TABS, Pulse
from warmroute.proxy.dashboard.tab import MAX_FRAMES, Tab, frame
from warmroute.proxy.ledger import Ledger
from warmroute.proxy.ledger.decision import Decision, Roster
from warmroute.proxy.ledger.tokens import TokenClasses

STATIC = Path(__file__).parents[2] / "proxy" / "dashboard" / "static"
ROSTER = Roster(["a", "b"], ["up", "up"], ["mirror", "mirror"], [0, 1])


def decide(ledger: Ledger, request_id: str) -> Decision:
    decision = Decision(
        *(request_id, 1000.0, "/v1/completions", "m", "exact", 100),
        *("round_robin", ROSTER, [48, 64], 0, "load"),
    )
    ledger.open(decision, 0.0)
    return decision


def events(data: bytes) -> list[tuple[str, Any]]:
    """Read server-sent events."""
    found = re.findall(r"event: (\w+)\ndata: (.*)\n\n", data.decode())
    return [(name, json.loads(value)) for name, value in found]


async def waiting(tab: Tab) -> list[tuple[str, Any]]:
    """Return the events that wait in a tab."""
    async with asyncio.timeout(1):
        return events(await anext(tab.batches()))


def fill_state(**facts: Any) -> dict[str, Any]:
    """Return a state without a fault, but for *facts* of its only backend's view."""
    view = {"source": "events", "status": "live", "lag_s": 0.01, "discount": 1.0}
    return {
        "backends": [
            {"name": "a", "state": "up", "breaker": "closed", "view": view | facts}
        ],
        "index": {"bytes": 10, "cap_bytes": 100},
        "tokens": {
            **{"prompt": 100_000, "hit": 90_000, "cold": 10_000},
            **{"evicted": 0, "elsewhere": 0, "unpredicted": 0},
        },
        "paid_twice_ratio": 0.0,
    }


class FakeSource:
    """A state that the test can change, and surveys in three steps."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.state: dict[str, Any] = {"backends": [], "num": 0}
        self.num_surveys = 0

    def overview(self) -> Mapping[str, Any]:
        return {**self.state}

    def survey(self, max_nodes: int) -> Survey:
        self.num_surveys += 1
        yield
        yield
        return {"max_nodes": max_nodes}


class FakeTime:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def clock() -> FakeTime:
    return FakeTime()


@pytest.fixture
def pulse(source: FakeSource, clock: FakeTime) -> Pulse:
    return Pulse(source, clock, clock)


class TestPulse:
    async def test_a_new_tab_gets_everything(
        self, pulse: Pulse, source: FakeSource
    ) -> None:
        """The state, the last hour, and the newest decisions."""
        decide(source.ledger, "r1")
        pulse.tick()
        found = await waiting(pulse.join(wants_view=False))
        assert [name for name, _ in found] == ["state", "history", "decisions"]
        assert found[0][1] == {"backends": [], "num": 0}
        assert found[1][1] == [[1000.0, 0, 0, 0, 0, 0]]
        assert [one["request_id"] for one in found[2][1]] == ["r1"]

    async def test_then_only_what_changes(
        self, pulse: Pulse, source: FakeSource
    ) -> None:
        tab = pulse.join(wants_view=False)
        await waiting(tab)
        source.state["num"] = 7
        decision = decide(source.ledger, "r1")
        pulse.tick()
        found = dict(await waiting(tab))
        assert found["change"] == {"num": 7}
        assert found["decisions"][0]["status"] is None
        source.ledger.settle(decision, status=200, duration_s=1.0, cached_tokens=32)
        pulse.tick()
        found = dict(await waiting(tab))
        assert found["change"] == {}
        assert found["decisions"][0]["tokens"]["hit"] == 32

    async def test_all_tabs_share_one_frame(
        self, pulse: Pulse, source: FakeSource
    ) -> None:
        """However many there are, the state is read and written down once."""
        tabs = [pulse.join(wants_view=False) for _ in range(50)]
        for tab in tabs:
            await waiting(tab)
        pulse.tick()
        first = tabs[0]._frames[0]
        assert all(tab._frames[0] is first for tab in tabs)

    async def test_there_is_a_last_one(self, pulse: Pulse) -> None:
        """Nobody can open tabs without end; one that goes makes room."""
        tabs = [pulse.join(wants_view=False) for _ in range(MAX_TABS)]
        with pytest.raises(ClientError, match="allowed: 100") as refused:
            pulse.join(wants_view=False)
        assert (refused.value.status, refused.value.code) == (503, "too_many_streams")
        pulse.leave(tabs[0])
        pulse.join(wants_view=False)

    async def test_a_slow_tab_is_let_go(self, pulse: Pulse) -> None:
        """One that reads nothing is closed; the others are told as before."""
        slow, quick = pulse.join(wants_view=False), pulse.join(wants_view=False)
        for _ in range(MAX_FRAMES):
            await waiting(quick)
            pulse.tick()
        assert (slow.is_open, quick.is_open) == (False, True)
        assert [one async for one in slow.batches()] == []
        assert dict(await waiting(quick))["change"] == {}

    async def test_without_a_tab_nothing_is_looked_at(
        self, pulse: Pulse, source: FakeSource
    ) -> None:
        """Only the sums are sampled."""
        source.state = {}  # would fail
        pulse.tick()
        await pulse.look()
        assert source.num_surveys == 0

    async def test_surveys_only_for_those_who_look(
        self, pulse: Pulse, source: FakeSource, clock: FakeTime
    ) -> None:
        """A new tab gets the last one, and it is not made again at once."""
        plain = pulse.join(wants_view=False)
        await pulse.look()
        assert source.num_surveys == 0
        await waiting(plain)
        tab = pulse.join(wants_view=True)
        await pulse.look()
        assert dict(await waiting(tab))["view"] == {"max_nodes": 240}
        assert plain._frames == []
        later = pulse.join(wants_view=True)
        assert dict(await waiting(later))["view"] == {"max_nodes": 240}
        await pulse.look()
        assert source.num_surveys == 1
        clock.now += 10
        await pulse.look()
        assert source.num_surveys == 2

    async def test_a_survey_that_nobody_waits_for_any_more_is_not_kept(
        self, pulse: Pulse
    ) -> None:
        """Whoever comes later would see it as if it were new."""
        tab = pulse.join(wants_view=True)
        looking = asyncio.create_task(pulse.look())
        await asyncio.sleep(0)
        pulse.leave(tab)
        await looking
        later = pulse.join(wants_view=True)
        assert "view" not in dict(await waiting(later))

    async def test_closing_ends_every_tab(self, pulse: Pulse) -> None:
        tab = pulse.join(wants_view=False)
        pulse.close()
        assert [one async for one in tab.batches()] == []
        with pytest.raises(ClientError):
            pulse.join(wants_view=False)

    async def test_a_failing_tick_costs_one_tick(
        self,
        pulse: Pulse,
        source: FakeSource,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """It is logged, and the next one works."""
        tab = pulse.join(wants_view=False)
        await waiting(tab)
        good, source.state = source.state, {}
        slept = 0

        async def sleep(_: float) -> None:
            nonlocal slept
            slept += 1
            source.state = {**good, "num": slept}
            if slept == 2:
                raise asyncio.CancelledError

        monkeypatch.setattr("warmroute.proxy.dashboard.pulse.asyncio.sleep", sleep)
        with pytest.raises(asyncio.CancelledError):
            await pulse.run()
        assert caplog.messages.count("dashboard_tick_failed") == 1
        assert dict(await waiting(tab))["change"] == {"num": 1}


class TestNewest:
    def test_tells_each_decision_when_it_opens_and_ends(self) -> None:
        ledger, newest = Ledger(), Newest()
        first = decide(ledger, "r1")
        assert [one["request_id"] for one in newest.look(ledger.newest())] == ["r1"]
        assert newest.look(ledger.newest()) == []
        decide(ledger, "r2")
        ledger.settle(first, status=200, duration_s=1.0)
        told = newest.look(ledger.newest())
        assert [(one["request_id"], one["status"]) for one in told] == [
            ("r1", 200),
            ("r2", None),
        ]

    def test_is_bounded(self) -> None:
        """Of a thousand a second the newest are told."""
        ledger, newest = Ledger(), Newest()
        for at in range(1000):
            decide(ledger, f"r{at}")
        told = newest.look(ledger.newest())
        assert len(told) == len(newest.all()) == MAX_DECISIONS
        assert told[-1]["request_id"] == "r999"


class TestHistory:
    def test_keeps_an_hour(self) -> None:
        """One sample every 5 s, however often it is asked."""
        history = History()
        for second in range(5000):
            history.take(float(second), TokenClasses(second, 0, 0, 0, 0))
        times = [one[0] for one in history.samples]
        assert len(times) == MAX_SAMPLES
        assert {b - a for a, b in pairwise(times)} == {5.0}

    def test_goes_on_when_the_clock_was_set_back(self) -> None:
        history = History()
        assert history.take(1000.0, TokenClasses(0, 0, 0, 0, 0))
        assert history.take(10.0, TokenClasses(1, 0, 0, 0, 0))


JSON = st.dictionaries(st.sampled_from("xyz"), st.integers(0, 2))
STATES = st.builds(
    lambda top, rows: {
        **top,
        "backends": [{"name": n, **row} for n, row in rows.items()],
    },
    JSON,
    st.dictionaries(st.sampled_from("abcd"), JSON),
)


def lay_over(before: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    """Do as the page does (store.js)."""
    told = {**told}
    rows = {one["name"]: one for one in before["backends"]}
    for one in told.pop("backends", []):
        rows[one["name"]] = {**rows.get(one["name"], {}), **one}
    order, dropped = told.pop("order", list(rows)), told.pop("dropped", [])
    after = {**before, **told, "backends": [rows[name] for name in order]}
    return {key: value for key, value in after.items() if key not in dropped}


class TestChanges:
    @given(STATES, STATES)
    def test_laid_over_the_old_give_the_new(
        self, before: dict[str, Any], after: dict[str, Any]
    ) -> None:
        """Whatever came, went, or changed; a backend's keys never go one by one."""
        for one in before["backends"]:
            for row in after["backends"]:
                if one["name"] == row["name"]:
                    for key in one:
                        row.setdefault(key, one[key])
        assert lay_over(before, changes(before, after)) == after

    def test_are_small_for_a_large_fleet(self) -> None:
        """Of 200 backends, one that changed costs one line."""
        draw = random.Random(1)
        rows = [{"name": f"b{n}", "x": draw.random(), "kv": "why"} for n in range(200)]
        before = {"backends": rows, "v": 1}
        after = {"backends": [{**one} for one in rows], "v": 1}
        after["backends"][17]["x"] = 2.0  # type: ignore[index]
        told = changes(before, after)
        assert told == {"backends": [{"name": "b17", "x": 2.0}]}


class TestAdvice:
    def test_all_is_well(self) -> None:
        assert advise(fill_state()) == []

    @pytest.mark.parametrize(
        ("facts", "code", "words"),
        [
            ({"source": "none"}, "no_view", "does not report cached tokens"),
            ({"discount": 0.62}, "over_promised", "count 62%"),
            ({"status": "degraded"}, "events_degraded", "replay endpoint"),
            ({"status": "silent"}, "events_silent", "has not published"),
            ({"status": "catching_up"}, "events_catching_up", "made anew"),
            ({"lag_s": 3.21}, "events_late", "3.2 s late"),
            ({"not_followed": "why"}, "events_not_followed", "sent to it: why"),
        ],
    )
    def test_a_doubtful_view_is_named(
        self, facts: dict[str, Any], code: str, words: str
    ) -> None:
        """With its backend, and with what helps."""
        (warning,) = advise(fill_state(**facts))
        assert (warning["backend"], warning["level"]) == ("a", "doubt")
        assert warning["code"] == code
        assert words in warning["sentence"]

    def test_a_dead_fleet_is_bad(self) -> None:
        """Of a backend that is down, its view is no more worth a word."""
        state = fill_state(lag_s=100)
        state["backends"][0]["state"] = "down"
        found = advise(state)
        assert [one["code"] for one in found] == ["none_up", "backend_down"]
        assert {one["level"] for one in found} == {"bad"}

    @pytest.mark.parametrize(
        ("breaker", "level", "words"),
        [("open", "bad", "breaker is open"), ("half_open", "doubt", "is a trial")],
    )
    def test_a_breaker_is_told_while_probes_pass(
        self, breaker: str, level: str, words: str
    ) -> None:
        """Its state alone says ``up``; of one that is down nothing is added."""
        state = fill_state()
        state["backends"][0]["breaker"] = breaker
        (warning,) = advise(state)
        assert (warning["backend"], warning["level"]) == ("a", level)
        assert warning["code"] == f"breaker_{breaker}"
        assert words in warning["sentence"]
        state["backends"][0]["state"] = "down"
        assert f"breaker_{breaker}" not in [one["code"] for one in advise(state)]

    def test_much_paid_twice_has_its_main_reason(self) -> None:
        state = fill_state()
        state["tokens"] |= {"hit": 70_000, "evicted": 28_000, "elsewhere": 2_000}
        state["paid_twice_ratio"] = 0.3
        (warning,) = advise(state)
        assert "30% of the prompt tokens were paid twice" in warning["sentence"]
        assert "too small" in warning["sentence"]

    def test_wrong_views_and_a_full_index_are_told(self) -> None:
        state = fill_state()
        state["tokens"]["unpredicted"] = 6_000
        state["index"]["bytes"] = 99
        codes = [one["code"] for one in advise(state)]
        assert codes == ["unpredicted", "index_full"]


class TestAssets:
    def test_are_below_250_kb(self) -> None:
        """All of them, not compressed."""
        assert sum(len(one.body) for one in read_assets().values()) < 250_000

    def test_everything_that_the_page_names_is_there(self) -> None:
        """Its links, and what its modules import; and all modules are preloaded."""
        page = read_assets()[PAGE].body.decode()
        named = set(re.findall(r'(?:href|src)="/static/([^"]+)"', page))
        assert named <= set(read_assets())
        for path in STATIC.glob("js/*.js"):
            for name in re.findall(r'from "\./(\w+\.js)"', path.read_text()):
                assert f"js/{name}" in named
            assert f"js/{path.name}" in named

    def test_nothing_comes_from_elsewhere(self) -> None:
        """No address but namespaces, nothing inline, no markup from data."""
        for path in [*STATIC.glob("js/*.js"), *STATIC.glob("*.*")]:
            text = path.read_text()
            found = set(re.findall(r"https?://[\w./]+", text))
            assert found <= {"http://www.w3.org/2000/svg"}, path.name
            for word in ("innerHTML", "outerHTML", "insertAdjacent", "eval("):
                assert word not in text, path.name
        page = (STATIC / PAGE).read_text()
        assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=", page)

    def test_the_policy_allows_nothing_inline(self) -> None:
        policy = HEADERS["Content-Security-Policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy

    def test_vendored_code_carries_its_licence(self) -> None:
        assert "MIT" in (STATIC / "vendor" / "LICENSE-uPlot").read_text()


def test_a_frame_is_one_event() -> None:
    """No value can end it early: line ends are escaped."""
    assert events(frame("x", {"a": "1\n\nevent: y\ndata: 2\n\n"})) == [
        ("x", {"a": "1\n\nevent: y\ndata: 2\n\n"})
    ]
