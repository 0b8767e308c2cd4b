"""The shadow is asked, counted, and harms nobody."""

import logging
from typing import Any

import pytest
from conformance.rig import StartRig, answer_ok, chat, post
from prometheus_client import generate_latest

from warmroute.policies.routing.base import Candidate, Choice, Query, build
from warmroute.policies.routing.rates import SpeedClass
from warmroute.proxy.deciding import Deciding
from warmroute.proxy.ledger import Ledger
from warmroute.proxy.ledger.decision import Decision, Roster
from warmroute.proxy.metrics import build_registry
from warmroute.proxy.policy_metrics import PolicyExposition
from warmroute.proxy.shadow import NOTE, Shadow

ROSTER = Roster(["a", "b"], ["up", "up"], ["mirror", "mirror"], [0, 1])


def decision(index: int = 0) -> Decision:
    return Decision(
        *("r", 0.0, "/v1/completions", "m", "exact", 1000),
        *("round_robin", ROSTER, [0, 800], index, "load"),
    )


def candidates() -> list[Candidate]:
    speed = SpeedClass()
    speed.rate = 100.0
    return [
        Candidate("a", speed, rate=100.0),
        Candidate("b", speed, rate=100.0, matched_tokens=800),
    ]


class TestShadow:
    def test_it_sums_what_it_would_have_chosen(self) -> None:
        shadow = Shadow(build("expected_ttft"), Ledger())
        ours, agreeing = decision(0), decision(1)
        shadow.judge(Query(1000, 5.0), candidates(), ours)
        shadow.judge(Query(1000, 5.0), candidates(), agreeing)
        assert shadow.facts() == {
            "policy": "expected_ttft",
            "requests": 2,
            "agreed": 1,
            "expected_ttft_s": {"first": 12.0, "shadow": 4.0},
            "matched_tokens": {"first": 800, "shadow": 1600},
            "note": NOTE,
        }
        told = ours.record()["shadow"]
        assert (told["policy"], told["chosen"]) == ("expected_ttft", "b")
        assert told["matched_tokens"] == 800
        assert told["cost"]["miss_s"] == pytest.approx(2.0)
        assert ours.chosen == "a"

    def test_a_policy_without_prices_shows_none(self) -> None:
        one = decision()
        Shadow(build("least_requests"), Ledger()).judge(
            Query(1000, 5.0), candidates(), one
        )
        assert set(one.record()["shadow"]["cost"].values()) == {None}

    def test_costs_in_tuples_are_read_too(self) -> None:
        class Priced:
            name = "priced"

            def choose(self, query: Query, found: Any) -> Choice:
                return Choice(1, "load", [(0, 0, 0, 0), (1, 2, 3, 6)])

        one = decision()
        Shadow(Priced(), Ledger()).judge(Query(1000, 5.0), candidates(), one)
        costs = {"wait_s": 1, "miss_s": 2, "decode_s": 3, "total_s": 6}
        assert one.record()["shadow"]["cost"] == costs

    @pytest.mark.parametrize(
        "choice", [Choice(2, "x"), Choice(-1, "x"), None, Choice(1, "x", [])]
    )
    def test_what_fails_is_counted_and_logged_once(
        self, choice: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Broken:
            name = "broken"

            def choose(self, query: Query, found: Any) -> Choice:
                return choice

        ledger = Ledger()
        shadow = Shadow(Broken(), ledger)
        with caplog.at_level(logging.ERROR):
            for _ in range(3):
                one = decision()
                shadow.judge(Query(1000, 5.0), candidates(), one)
                assert "shadow" not in one.record()
        assert ledger.policy_errors == {"broken": 3}
        assert shadow.requests == 0
        assert [record.message for record in caplog.records] == ["shadow_failed"]


POLICY = {"name": "round_robin", "shadow": {"name": "expected_ttft", "alpha_cap": 3}}


class TestInTheProxy:
    async def test_requests_go_where_the_first_policy_says(
        self, start_rig: StartRig
    ) -> None:
        rig = await start_rig(answer_ok, answer_ok, policy=POLICY)
        for _ in range(6):
            assert (await rig.request(post(chat()))).status == 200
        assert [len(engine.requests) for engine in rig.engines] == [3, 3]
        facts = rig.app.deciding.show_shadow()
        assert facts is not None
        assert facts["requests"] == 6
        newest = next(rig.app.ledger.newest()).record()
        assert newest["policy"] == "round_robin"
        assert newest["shadow"]["policy"] == "expected_ttft"
        assert newest["shadow"]["chosen"] in ("b0", "b1")
        text = generate_latest(build_registry(PolicyExposition(rig.app.deciding)))
        assert b'shadow_decisions_total{agreed="true",policy="expected_ttft"}' in text

    async def test_a_reload_without_a_change_keeps_its_counts(
        self, start_rig: StartRig
    ) -> None:
        rig = await start_rig(answer_ok, policy=POLICY)
        await rig.request(post(chat()))
        deciding: Deciding = rig.app.deciding
        kept, first = deciding.shadow, rig.app.router.policy
        config = rig.app.config.policy
        deciding.prepare(config)()
        assert deciding.shadow is kept
        deciding.prepare(config.model_copy(update={"shadow": None}))()
        assert (deciding.shadow, rig.app.router.policy) == (None, first)
        assert (deciding.show_shadow(), deciding.show_queue()) == (None, None)
