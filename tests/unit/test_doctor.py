"""What the doctor sends, finds and prints."""

import json

import aiohttp
import pytest
from unit import doctor_rig
from unit.doctor_rig import Admit, fake

from warmroute.adapters.base import (
    Endpoint,
)
from warmroute.policies.errors import ProtocolMismatch
from warmroute.proxy.doctor.examination import CHECKS, FLEET_CHECKS, Examined
from warmroute.proxy.doctor.finding import MAX_CHARS, blocked, broken, ok, skipped, warn
from warmroute.proxy.doctor.prompt import Reply, fresh_prompt, send
from warmroute.proxy.doctor.report import as_object, as_text

admitted = doctor_rig.admitted


class TestFinding:
    def test_holds_nothing_that_a_terminal_obeys(self) -> None:
        finding = warn("\x1b[2Jgone\n", "a\rb\u202ec")
        assert (finding.found, finding.remedy) == ("?[2Jgone?", "a?b?c")

    def test_is_cut(self) -> None:
        assert len(ok("x" * 10_000).found) == MAX_CHARS + 3


class TestPrompt:
    @pytest.mark.parametrize(
        ("block_size", "max_model_len", "length"),
        [
            (16, None, 49),
            (None, None, 49),
            (1, None, 4),
            (128, 1024, 385),
            (128, 385, 257),  # the third block would leave no room for an answer
            (128, 129, 0),
            (10**9, None, 3 * 1024 + 1),
        ],
    )
    def test_is_three_blocks_and_a_token_where_they_fit(
        self, block_size: int | None, max_model_len: int | None, length: int
    ) -> None:
        assert len(fresh_prompt(block_size, max_model_len)) == length

    def test_is_new_each_time(self) -> None:
        assert fresh_prompt(16, None) != fresh_prompt(16, None)

    async def test_a_refusal_is_told_without_the_prompt(self) -> None:
        async with (
            fake(statuses={"/v1/completions": 400}) as engine,
            aiohttp.ClientSession() as session,
        ):
            with pytest.raises(ProtocolMismatch) as caught:
                await send(Endpoint(session, engine.url, {}, 2), "m", [77, 78])
        assert "a prompt of 2 token ids with HTTP 400" in str(caught.value)
        assert "77, 78" not in str(caught.value)

    @pytest.mark.parametrize(
        "usage",
        [None, [], {"prompt_tokens_details": 3}, {"prompt_tokens_details": None}],
    )
    async def test_what_is_not_told_is_unknown(self, usage: object) -> None:
        answer = json.dumps({"usage": usage}).encode()
        async with (
            fake(bodies={"/v1/completions": answer}) as engine,
            aiohttp.ClientSession() as session,
        ):
            reply = await send(Endpoint(session, engine.url, {}, 2), None, [1])
        assert reply == Reply(None, None)


class TestReport:
    @pytest.fixture
    def examined(self, admitted: Admit) -> Examined:
        patient = admitted("http://127.0.0.1:1/prefix", api_key="secret")
        patient.findings = {
            "reachable": broken("refused", "start it"),
            "engine": blocked("reachable"),
            "models": blocked("reachable"),
            "clock": skipped("no time"),
        }
        return Examined([patient], {"hit ratio": ok("62%")})

    def test_a_remedy_stands_below_its_finding(self, examined: Examined) -> None:
        assert as_text(examined) == (
            "a  http://127.0.0.1:1/prefix\n"
            "  broken   reachable             refused\n"
            "                                 -> start it\n"
            "  skipped  clock                 no time\n"
            "  skipped  2 further checks      need 'reachable'\n"
            "\n"
            "fleet\n"
            "  ok       hit ratio             62%\n"
            "\n"
            "1 broken, 0 warn, 1 ok, 3 skipped: routing relies on what is broken"
        )

    def test_the_object_holds_every_finding(self, examined: Examined) -> None:
        report = as_object(examined)
        assert report["ok"] is False
        assert report["counts"] == {"broken": 1, "warn": 0, "ok": 1, "skipped": 3}
        [backend] = report["backends"]
        assert [one["check"] for one in backend["checks"]] == [
            "reachable",
            "engine",
            "models",
            "clock",
        ]
        assert backend["checks"][1]["found"] == "needs 'reachable'"
        assert "secret" not in json.dumps(report)

    def test_every_check_is_documented_under_its_name(self) -> None:
        from unit.test_docs import DOCS

        for check in (*CHECKS, *FLEET_CHECKS):
            assert f"\n### {check.name}\n" in DOCS["doctor.md"]

    def test_checks_come_after_those_that_they_need(self) -> None:
        seen: set[str] = set()
        for check in CHECKS:
            assert set(check.needs) <= seen
            assert check.name not in seen
            seen.add(check.name)
