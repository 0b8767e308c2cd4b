"""The doctor against engines in every state: each is named, with the remedy."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from integration.doctor_rig import (
    examine,
    fake_engine,
    findings,
    statuses,
    tiny_engine,
)
from unit.token_files import tiny_files, write_files

from warmroute.adapters.embedded.model.loading import LoadedModel, load_model
from warmroute.proxy.demo.child import free_port
from warmroute.proxy.doctor.examination import CHECKS

NO_PARITY = {"token parity": "skipped"}
USAGE = {"prompt_tokens": 97, "completion_tokens": 1}
NEVER_HITS = json.dumps(
    {"usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 0}}}
).encode()
REPORTS_NOTHING = json.dumps({"usage": USAGE}).encode()
COUNTERS = b"""\
vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="100"} 1.0
vllm:prefix_cache_queries_total{engine="0"} 1000.0
vllm:prefix_cache_hits_total{engine="0"} 620.0
"""


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model("tiny")


class TestGoodFleet:
    async def test_nothing_is_wrong(self, loaded: LoadedModel, tmp_path: Path) -> None:
        """One engine binds where it publishes, one connects to what is bound here."""
        here = f"tcp://127.0.0.1:{free_port()}"
        async with (
            tiny_engine(loaded) as a,
            tiny_engine(loaded, events=here, topic="b") as b,
        ):
            examined = await examine(tmp_path, {"a": a, "b": b})
            again = await examine(tmp_path, {"a": a, "b": b})
        assert not examined.is_broken
        for name in "ab":
            assert statuses(findings(examined, name)) == NO_PARITY
            assert list(findings(examined, name)) == [check.name for check in CHECKS]
        unseen = {"hit ratio": "skipped", "cache killers": "skipped"}
        assert statuses(examined.fleet) == unseen
        # The first examination sent 49 tokens three times and one of them twice.
        assert "from cache and computed" in again.fleet["hit ratio"].found
        assert examined.fleet["event addresses"].found.startswith("2,")

    async def test_with_its_key_a_guarded_engine_is_good(
        self, loaded: LoadedModel, tmp_path: Path
    ) -> None:
        async with tiny_engine(loaded, key="sesame") as a:
            examined = await examine(tmp_path, {"a": {**a, "api_key": "sesame"}})
        assert statuses(findings(examined, "a")) == NO_PARITY
        assert findings(examined, "a")["authorised"].found == "the key is taken"

    async def test_without_probes_no_prompt_is_sent(
        self, loaded: LoadedModel, tmp_path: Path
    ) -> None:
        """What an engine tells of itself is believed; the rest is skipped."""
        async with tiny_engine(loaded) as a:
            await examine(tmp_path, {"a": a}, is_probing=False)
            examined = await examine(tmp_path, {"a": a}, is_probing=False)
        assert not examined.is_broken
        assert statuses(findings(examined, "a")) == {
            "generation": "skipped",
            "KV events": "skipped",
            "replay": "skipped",
            **NO_PARITY,
        }
        assert examined.fleet["hit ratio"].status == "skipped"


class TestSickFleet:
    """One fleet of every sickness, examined at once."""

    @pytest.fixture
    async def sick(self, loaded: LoadedModel, tmp_path: Path) -> Any:
        dead = {"url": f"http://127.0.0.1:{free_port()}"}
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            silent = await enter(tiny_engine(loaded, events=None))
            guarded = await enter(tiny_engine(loaded, key="sesame"))
            entries = {
                "dead": dead,
                "silent": silent,
                "no_replay": await enter(tiny_engine(loaded, replay=None)),
                "bad_key": {**guarded, "api_key": "opensesame"},
                "no_key": guarded,
                "blocks": await enter(tiny_engine(loaded, block_size=32)),
                "hanging": await enter(fake_engine(hanging={"/v1/completions"})),
                "uncached": await enter(
                    fake_engine(bodies={"/v1/completions": NEVER_HITS})
                ),
                "untold": await enter(
                    fake_engine(
                        bodies={
                            "/v1/completions": REPORTS_NOTHING,
                            "/metrics": COUNTERS,
                        }
                    )
                ),
                "deaf_replay": await enter(
                    tiny_engine(loaded, told={"replay_endpoint": "tcp://*:9"})
                ),
            }
            yield await examine(tmp_path, entries)

    async def test_each_is_named_with_the_remedy(self, sick: Any) -> None:
        expected = {
            ("dead", "reachable"): ("broken", "refused", "start the engine"),
            ("silent", "KV events"): ("warn", "publishes none", "--kv-events "),
            ("no_replay", "replay"): ("warn", "there is none", "--kv-events-replay"),
            ("bad_key", "authorised"): ("broken", "does not take", "api_key"),
            ("no_key", "authorised"): ("broken", "wants a key", "api_key"),
            ("hanging", "generation"): (
                "broken",
                "says that it is healthy, and generates nothing",
                "restart the engine",
            ),
            ("uncached", "prefix caching"): (
                "broken",
                "a prompt of 97 tokens hit none",
                "--no-enable-prefix-caching",
            ),
            ("untold", "prefix caching"): ("broken", "hit none", "--enable-prefix"),
            ("untold", "cached-token reports"): (
                "warn",
                "not verified",
                "--enable-prompt-tokens-details",
            ),
            ("uncached", "KV events"): ("warn", "none", "--kv-events-config '{"),
            ("deaf_replay", "replay"): ("broken", "does not replay", "replay address"),
        }
        for (name, check), (status, found, remedy) in expected.items():
            finding = findings(sick, name)[check]
            assert finding.status == status, (name, finding)
            assert found in finding.found, (name, finding)
            assert remedy in finding.remedy, (name, finding)
        assert sick.is_broken

    async def test_nothing_else_is_broken(self, sick: Any) -> None:
        broken = {
            (patient.name, name)
            for patient in sick.patients
            for name, finding in patient.findings.items()
            if finding.status == "broken"
        }
        assert broken == {
            ("dead", "reachable"),
            ("bad_key", "authorised"),
            ("no_key", "authorised"),
            ("hanging", "generation"),
            ("uncached", "prefix caching"),
            ("untold", "prefix caching"),
            ("deaf_replay", "replay"),
        }

    async def test_the_fleet_is_compared(self, sick: Any) -> None:
        sizes = sick.fleet["same block size"]
        assert sizes.status == "warn"
        assert "16 on silent, no_replay, deaf_replay; 32 on blocks" in sizes.found
        assert "--block-size" in sizes.remedy
        models = sick.fleet["same models"]
        assert (models.status, "silent serves tiny" in models.found) == ("warn", True)
        ratio = sick.fleet["hit ratio"].found
        assert "served 62% of 1,000 prompt tokens" in ratio
        assert "computed 38%" in ratio

    async def test_what_cannot_be_checked_names_what_must_be_good_first(
        self, sick: Any
    ) -> None:
        """The root of it, not the next in the chain."""
        found = findings(sick, "dead")
        others = {one.found for name, one in found.items() if name != "reachable"}
        assert others == {"needs 'reachable'"}
        assert findings(sick, "bad_key")["replay"].found == "needs 'authorised'"


class TestEvents:
    async def test_a_dead_backend_delays_nobody(
        self, loaded: LoadedModel, tmp_path: Path
    ) -> None:
        """A server that accepts and never answers costs its own timeout alone."""

        async def mute(reader: Any, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(mute, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, tiny_engine(loaded) as a:
            async with asyncio.timeout(10):
                examined = await examine(
                    tmp_path, {"mute": {"url": f"http://127.0.0.1:{port}"}, "a": a}
                )
        finding = findings(examined, "mute")["reachable"]
        assert (finding.status, "did not answer" in finding.found) == ("broken", True)
        assert statuses(findings(examined, "a")) == NO_PARITY

    async def test_two_engines_share_an_address_under_topics_of_their_own(
        self, loaded: LoadedModel, tmp_path: Path
    ) -> None:
        here = f"tcp://127.0.0.1:{free_port()}"
        async with (
            tiny_engine(loaded, events=here, topic="kv-1") as a,
            tiny_engine(loaded, events=here, topic="kv-10") as b,
        ):
            examined = await examine(tmp_path, {"a": a, "b": b})
        for name in "ab":
            assert statuses(findings(examined, name)) == NO_PARITY
        assert examined.fleet["event addresses"].status == "ok"

    async def test_one_topic_for_two_engines_is_broken(
        self, loaded: LoadedModel, tmp_path: Path
    ) -> None:
        """Both connect to one address, and nothing tells their blocks apart."""
        here = f"tcp://127.0.0.1:{free_port()}"
        async with (
            tiny_engine(loaded, events=here, topic="kv") as a,
            tiny_engine(loaded, events=here, topic="kv") as b,
        ):
            examined = await examine(tmp_path, {"a": a, "b": b})
        finding = examined.fleet["event addresses"]
        assert (finding.status, finding.found[:4]) == ("broken", "a, b")
        assert "topic" in finding.remedy

    async def test_an_address_that_nobody_publishes_at_is_broken(
        self, loaded: LoadedModel, tmp_path: Path
    ) -> None:
        wrong = {"endpoint": f"tcp://127.0.0.1:{free_port()}"}
        async with tiny_engine(loaded) as a:
            examined = await examine(tmp_path, {"a": {**a, "kv_events": wrong}})
        finding = findings(examined, "a")["KV events"]
        assert (finding.status, "no connection" in finding.found) == ("broken", True)

    async def test_an_address_that_is_held_already_is_no_fault_of_the_engine(
        self, loaded: LoadedModel, tmp_path: Path
    ) -> None:
        """The proxy that runs holds it, most likely."""
        holder = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        port = holder.sockets[0].getsockname()[1]
        told = {"endpoint": f"tcp://127.0.0.1:{port}"}
        async with holder, tiny_engine(loaded, told=told) as a:
            examined = await examine(tmp_path, {"a": a})
        finding = findings(examined, "a")["KV events"]
        assert (finding.status, "cannot bind" in finding.found) == ("warn", True)
        assert "/api/state" in finding.remedy
        assert not examined.is_broken

    @pytest.mark.parametrize(
        ("endpoint", "found", "remedy"),
        [
            ("tcp://nope", "has no port", "correct the endpoint that the engine"),
            ("tcp://*:99999", "has no port", "correct the endpoint that the engine"),
            ("tcp://192.0.2.1:5557", "cannot bind", "an address of this machine"),
        ],
    )
    async def test_an_address_that_cannot_be_is_told_from_one_that_is_held(
        self,
        loaded: LoadedModel,
        tmp_path: Path,
        endpoint: str,
        found: str,
        remedy: str,
    ) -> None:
        """No running proxy holds it, so stopping one would not help."""
        async with tiny_engine(loaded, told={"endpoint": endpoint}) as a:
            examined = await examine(tmp_path, {"a": a})
        finding = findings(examined, "a")["KV events"]
        assert (finding.status, found in finding.found) == ("broken", True)
        assert remedy in finding.remedy
        assert "/api/state" not in finding.remedy

    async def test_off_is_off(self, loaded: LoadedModel, tmp_path: Path) -> None:
        async with tiny_engine(loaded, events=None) as a:
            examined = await examine(tmp_path, {"a": {**a, "kv_events": False}})
        assert findings(examined, "a")["KV events"].status == "skipped"


class TestTokens:
    async def test_the_engine_s_own_tokenizer_agrees(
        self, loaded: LoadedModel, tmp_path: Path
    ) -> None:
        files = write_files(tmp_path / "files", tiny_files())
        async with tiny_engine(loaded) as a:
            examined = await examine(tmp_path, {"a": a}, tokenizer=files)
        assert statuses(findings(examined, "a")) == {}
        assert findings(examined, "a")["token parity"].found.startswith(
            "tiny: equal on chat"
        )

    async def test_a_wrong_tokenizer_is_named_with_the_first_token_that_differs(
        self, loaded: LoadedModel, tmp_path: Path
    ) -> None:
        """The vocabulary is right, and the chat template is another model's."""
        wrong = tiny_files("{{ bos_token }}{{ messages[0]['content'] }}")
        files = write_files(tmp_path / "files", wrong)
        async with tiny_engine(loaded) as a:
            examined = await examine(tmp_path, {"a": a}, tokenizer=files)
        finding = findings(examined, "a")["token parity"]
        assert (finding.status, examined.is_broken) == ("broken", True)
        assert finding.found.startswith("tiny, ")
        assert "token " in finding.found
        assert "the files that the engine loads" in finding.remedy
