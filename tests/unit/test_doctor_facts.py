"""The checks of the doctor that look at what others have found."""

from typing import Any

import pytest
from unit import doctor_rig
from unit.doctor_rig import Admit, card, heard

from warmroute.adapters.base import (
    CacheCounters,
    EngineFacts,
    EventAddress,
)
from warmroute.proxy.config import ModelConfig
from warmroute.proxy.doctor.block_size import BlockSize, SameBlockSize
from warmroute.proxy.doctor.cached_tokens import CachedTokens
from warmroute.proxy.doctor.dp_ranks import DPRanks
from warmroute.proxy.doctor.event_addresses import EventAddresses
from warmroute.proxy.doctor.examination import FLEET_CHECKS
from warmroute.proxy.doctor.finding import broken, ok
from warmroute.proxy.doctor.hit_ratio import HitRatio
from warmroute.proxy.doctor.kv_events import KVEvents
from warmroute.proxy.doctor.models import Models, SameModels
from warmroute.proxy.doctor.parity import Parity
from warmroute.proxy.doctor.prompt import Reply

admitted = doctor_rig.admitted


class TestFacts:
    """Checks that look at what others have found."""

    @pytest.mark.parametrize(
        ("told", "replies", "status"),
        [
            (None, [], "skipped"),
            (True, [], "ok"),
            (False, [], "warn"),
            (None, [None, None], "warn"),
            (None, [None, 48], "ok"),
            (False, [0, 0], "ok"),
            (True, [None, None], "ok"),  # SGLang is silent when nothing hit
        ],
    )
    async def test_cached_token_reports(
        self,
        admitted: Admit,
        told: bool | None,
        replies: list[int | None],
        status: str,
    ) -> None:
        patient = admitted()
        patient.facts = EngineFacts(reports_cached_tokens=told)
        patient.replies = [Reply(49, cached) for cached in replies]
        assert (await CachedTokens().examine(patient)).status == status

    @pytest.mark.parametrize(
        ("told", "event", "status", "word"),
        [
            (16, None, "ok", "16 tokens"),
            (None, 16, "ok", "16 tokens"),
            (None, None, "skipped", "not tell"),
            (16, 32, "warn", "blocks of 32 tokens, and it says 16"),
            (128, None, "warn", "shorter ones never hit"),
        ],
    )
    async def test_block_size(
        self,
        admitted: Admit,
        told: int | None,
        event: int | None,
        status: str,
        word: str,
    ) -> None:
        patient = admitted()
        patient.facts = EngineFacts(block_size=told)
        patient.heard = heard(event) if event else None
        finding = await BlockSize().examine(patient)
        assert (finding.status, word in finding.found) == (status, True), finding

    @pytest.mark.parametrize(
        ("ranks", "sources", "status"),
        [(None, 0, "skipped"), (2, 0, "ok"), (2, 2, "ok"), (2, 1, "warn")],
    )
    async def test_dp_ranks(
        self, admitted: Admit, ranks: int | None, sources: int, status: str
    ) -> None:
        patient = admitted()
        patient.facts = EngineFacts(dp_ranks=ranks)
        patient.sources = [
            EventAddress(f"tcp://h:{rank}", rank=rank) for rank in range(sources)
        ]
        assert (await DPRanks().examine(patient)).status == status

    @pytest.mark.parametrize(
        ("served", "wanted", "status"),
        [
            (["m"], None, "ok"),
            (["m", "n"], ["n"], "ok"),
            (["m"], ["n"], "broken"),
            ([], ["n"], "ok"),
            ([], None, "warn"),
        ],
    )
    async def test_models(
        self,
        admitted: Admit,
        served: list[str],
        wanted: list[str] | None,
        status: str,
    ) -> None:
        patient = admitted()
        patient.config = patient.config.model_copy(update={"models": wanted})
        patient.cards = [card(name) for name in served]
        assert (await Models().examine(patient)).status == status

    async def test_parity_is_skipped_without_a_tokenizer(self, admitted: Admit) -> None:
        models = (ModelConfig(name="m"), ModelConfig(name="n", tokenizer="engine"))
        patient = admitted(models=models)
        patient.cards = [card("m")]
        finding = await Parity().examine(patient)
        assert (finding.status, finding.found) == ("skipped", "no tokenizer configured")
        patient.cards = [card("n")]
        assert "asked for tokens" in (await Parity().examine(patient)).found

    async def test_events_without_pyzmq_name_the_extra(self, admitted: Admit) -> None:
        patient = admitted(kv_events={"endpoint": "tcp://127.0.0.1:1"})
        finding = await KVEvents().examine(patient)
        assert finding == broken(
            "the engine publishes, and the package pyzmq is missing here",
            "pip install 'warmroute[events]'",
        )


class TestFleet:
    async def test_models_of_pools_are_named(self, admitted: Admit) -> None:
        fleet = [admitted(name=name) for name in "abc"]
        for patient, models in zip(fleet, (["m"], ["m", "n"], []), strict=True):
            patient.findings["models"] = ok("")
            patient.cards = [card(name) for name in models]
        finding = SameModels().compare(fleet)
        assert finding.status == "warn"
        assert finding.found == "a serves m; b serves m, n"

    async def test_lengths_that_differ_are_named(self, admitted: Admit) -> None:
        fleet = [admitted(name=name) for name in "ab"]
        for patient, length in zip(fleet, (4096, 2048), strict=True):
            patient.findings["models"] = ok("")
            patient.cards = [card("m", length)]
        assert "a 4096, b 2048" in SameModels().compare(fleet).found

    async def test_one_backend_equals_itself(self, admitted: Admit) -> None:
        fleet = [admitted()]
        for check in FLEET_CHECKS:
            assert check.compare(fleet).status == "skipped"

    async def test_block_sizes_are_those_of_the_events(self, admitted: Admit) -> None:
        a, b = admitted(name="a"), admitted(name="b")
        a.facts = EngineFacts(block_size=16)
        b.facts, b.heard = EngineFacts(block_size=16), heard(32)
        assert SameBlockSize().compare([a, b]).found == "it differs: 16 on a; 32 on b"

    @pytest.mark.parametrize(
        ("topics", "status"),
        [("ab", "ok"), ("aa", "broken"), (("", "a"), "broken")],
    )
    async def test_topics_tell_backends_of_one_address_apart(
        self, admitted: Admit, topics: Any, status: str
    ) -> None:
        fleet = [admitted(name=name) for name in "ab"]
        for patient, topic in zip(fleet, topics, strict=True):
            patient.sources = [EventAddress("tcp://127.0.0.1:1", None, topic)]
        assert EventAddresses().compare(fleet).status == status

    async def test_hits_are_weighted_by_tokens(self, admitted: Admit) -> None:
        fleet = [admitted(name=name) for name in "abc"]
        fleet[0].counters = CacheCounters(900, 600)
        fleet[1].counters = CacheCounters(100, 20)
        fleet[2].counters = CacheCounters(0, 0)
        assert HitRatio().compare(fleet).found == (
            "since they started, the engines served 62% of 1,000 prompt tokens from "
            "cache and computed 38% (a 67%, b 20%)"
        )
