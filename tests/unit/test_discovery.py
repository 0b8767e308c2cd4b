"""What adapters find out about an engine's cache: sources, counters, snapshot."""

import json
from typing import Any

import pytest
from unit import test_adapters
from unit.test_adapters import Ask

from warmroute.adapters.base import CacheCounters, EventAddress
from warmroute.adapters.embedded.client import EmbeddedAdapter
from warmroute.adapters.openai import OpenAIAdapter
from warmroute.adapters.remedies import GENERAL
from warmroute.adapters.sglang.client import SGLangAdapter
from warmroute.adapters.sglang.event_sources import read_sources as read_sglang
from warmroute.adapters.vllm.client import VLLMAdapter
from warmroute.adapters.vllm.event_sources import read_sources as read_vllm
from warmroute.policies.errors import ProtocolMismatch

engines = test_adapters.engines
ask = test_adapters.ask

VLLM = {
    "enable_kv_cache_events": True,
    "publisher": "zmq",
    "endpoint": "tcp://*:5557",
    "replay_endpoint": "tcp://*:5600",
    "topic": "kv",
}
SGLANG = {
    "publisher": "zmq",
    "endpoint_host": "*",
    "endpoint_port_base": 5557,
    "topic": "kv",
    "block_size": 16,
    "dp_size": 2,
    "replay_endpoint_port_base": 5600,
}


def body(value: object) -> bytes:
    return json.dumps(value).encode()


class TestVLLM:
    async def test_names_a_source_a_rank_in_order(self, engines: Any, ask: Ask) -> None:
        """A wildcard is reached at the engine's own host."""
        second = {**VLLM, "endpoint": "tcp://*:5558", "replay_endpoint": None}
        answer = {"1": second, "0": VLLM}
        engine = await engines("vllm", bodies={"/kv_event_sources": body(answer)})
        assert await VLLMAdapter().event_sources(ask(engine)) == [
            EventAddress("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5600", "kv", 0),
            EventAddress("tcp://127.0.0.1:5558", None, "kv", 1),
        ]

    def test_binds_where_the_publisher_connects(self) -> None:
        told = {**VLLM, "endpoint": "tcp://127.0.0.1:5557"}
        [source] = read_vllm({"0": told}, "10.0.0.7")
        assert (source.endpoint, source.binds) == ("tcp://127.0.0.1:5557", True)
        assert source.replay == "tcp://10.0.0.7:5600"

    @pytest.mark.parametrize(
        "settings",
        [
            None,
            [],
            {**VLLM, "enable_kv_cache_events": False},
            {**VLLM, "publisher": "null"},
            {**VLLM, "endpoint": "inproc://kv"},
            {**VLLM, "endpoint": 5557},
            {},
        ],
    )
    def test_leaves_out_what_cannot_be_subscribed_to(self, settings: object) -> None:
        assert read_vllm({"0": settings, "one": VLLM, "\u0661": VLLM}, "h") == []

    async def test_older_releases_name_none(self, engines: Any, ask: Ask) -> None:
        engine = await engines("vllm", statuses={"/kv_event_sources": 404})
        assert await VLLMAdapter().event_sources(ask(engine)) == []

    async def test_counts_hits_of_all_ranks_and_tiers(
        self, engines: Any, ask: Ask
    ) -> None:
        page = b"""\
vllm:prefix_cache_queries_total{engine="0"} 100.0
vllm:prefix_cache_queries_total{engine="1"} 60.0
vllm:prefix_cache_hits_total{engine="0"} 40.0
vllm:prefix_cache_hits_total{engine="1"} 20.0
vllm:external_prefix_cache_queries_total{engine="0"} 60.0
vllm:external_prefix_cache_hits_total{engine="0"} 8.0
"""
        engine = await engines("vllm", bodies={"/metrics": page})
        counters = await VLLMAdapter().cache_counters(ask(engine))
        assert counters == CacheCounters(queried=160, hit=68)
        engine = await engines("vllm")
        assert await VLLMAdapter().cache_counters(ask(engine)) is None

    @pytest.mark.parametrize(
        ("labels", "expected"),
        [("True", True), ("False", False), ("None", None), (None, None)],
    )
    async def test_tells_whether_prefix_caching_is_on(
        self, engines: Any, ask: Ask, labels: str | None, expected: bool | None
    ) -> None:
        switch = f',enable_prefix_caching="{labels}"' if labels else ""
        page = f'vllm:cache_config_info{{block_size="16"{switch}}} 1.0\n'.encode()
        engine = await engines("vllm", bodies={"/metrics": page})
        assert (await VLLMAdapter().facts(ask(engine))).prefix_caching is expected

    def test_prefix_caching_was_opt_in_once(self) -> None:
        def flag(version: str | None) -> str:
            return VLLMAdapter().remedy("prefix_caching", version)

        assert "--no-enable-prefix-caching" in flag("0.32.0")
        assert flag("0.32.0") == flag(None) == flag("nightly")
        assert flag("0.6.4") == "start vLLM with --enable-prefix-caching"


class TestSGLang:
    async def test_counts_ports_up_a_rank(self, engines: Any, ask: Ask) -> None:
        info = {"max_total_num_tokens": 9, "kv_events": SGLANG}
        engine = await engines("sglang", bodies={"/server_info": body(info)})
        assert await SGLangAdapter().event_sources(ask(engine)) == [
            EventAddress("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5600", "kv", 0),
            EventAddress("tcp://127.0.0.1:5558", "tcp://127.0.0.1:5601", "kv", 1),
        ]

    def test_brackets_ipv6_and_binds_concrete_hosts(self) -> None:
        told = {**SGLANG, "dp_size": 1, "replay_endpoint_port_base": None}
        [everywhere] = read_sglang({**told, "endpoint_host": "::"}, "[::1]")
        assert everywhere == EventAddress("tcp://[::1]:5557", None, "kv")
        [concrete] = read_sglang({**told, "endpoint_host": "127.0.0.1"}, "h")
        assert concrete.binds
        assert concrete.endpoint == "tcp://127.0.0.1:5557"

    @pytest.mark.parametrize(
        ("changed", "count"),
        [
            ({"endpoint_port_base": None}, 0),
            ({"endpoint_port_base": 70_000}, 0),
            ({"dp_size": -3}, 0),
            ({"dp_size": "2"}, 0),
            ({"dp_size": 10**9}, 1024),
            ({"endpoint_port_base": 65_535}, 1),
        ],
    )
    def test_bounds_what_the_engine_claims(
        self, changed: dict[str, object], count: int
    ) -> None:
        assert len(read_sglang({**SGLANG, **changed}, "h")) == count

    @pytest.mark.parametrize(
        ("config", "binds"),
        [
            ('{"publisher":"zmq","bind":true}', False),
            ('{"bind":false}', True),
            ('{"publisher":"zmq"}', True),
            ("{", True),
            ("[" * 100_000, True),
            (7, True),
        ],
    )
    def test_a_concrete_address_that_it_binds_is_connected_to(
        self, config: object, binds: bool
    ) -> None:
        told = {**SGLANG, "endpoint_host": "127.0.0.1"}
        sources = read_sglang(told, "h", config)
        assert {one.binds for one in sources} == {binds}

    async def test_publishes_nowhere_unless_it_says_so(
        self, engines: Any, ask: Ask
    ) -> None:
        engine = await engines("sglang")
        assert await SGLangAdapter().event_sources(ask(engine)) == []

    async def test_counts_cached_tokens_of_all_sources(
        self, engines: Any, ask: Ask
    ) -> None:
        page = b"""\
sglang:prompt_tokens_total{model_name="m"} 200.0
sglang:cached_tokens_total{cache_source="device",model_name="m"} 90.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 10.0
"""
        engine = await engines("sglang", bodies={"/metrics": page})
        counters = await SGLangAdapter().cache_counters(ask(engine))
        assert counters == CacheCounters(queried=200, hit=100)

    async def test_tells_whether_the_radix_cache_is_off(
        self, engines: Any, ask: Ask
    ) -> None:
        info = {"max_total_num_tokens": 9, "disable_radix_cache": True}
        engine = await engines("sglang", bodies={"/server_info": body(info)})
        assert (await SGLangAdapter().facts(ask(engine))).prefix_caching is False


class TestOthers:
    async def test_openai_knows_nothing(self, engines: Any, ask: Ask) -> None:
        endpoint = ask(await engines("openai"))
        adapter = OpenAIAdapter()
        assert await adapter.event_sources(endpoint) == []
        assert await adapter.cache_counters(endpoint) is None
        assert await adapter.snapshot(endpoint) is None

    @pytest.mark.parametrize("kind", ["vllm", "sglang"])
    async def test_no_door_is_no_snapshot(
        self, engines: Any, ask: Ask, kind: str
    ) -> None:
        adapter = {"vllm": VLLMAdapter, "sglang": SGLangAdapter}[kind]()
        assert await adapter.snapshot(ask(await engines(kind))) is None

    async def test_a_shut_door_is_no_snapshot_and_a_broken_one_an_error(
        self, engines: Any, ask: Ask
    ) -> None:
        path = "/warmroute/kv/snapshot"
        refusal = body({"error": {"message": "off", "code": "kv_control_off"}})
        engine = await engines("vllm", bodies={path: refusal}, statuses={path: 403})
        assert await EmbeddedAdapter().snapshot(ask(engine)) is None
        engine.statuses[path] = 503
        with pytest.raises(ProtocolMismatch, match="off"):
            await EmbeddedAdapter().snapshot(ask(engine))

    def test_every_engine_has_a_word_for_every_lack(self) -> None:
        for adapter in (
            OpenAIAdapter(),
            VLLMAdapter(),
            SGLangAdapter(),
            EmbeddedAdapter(),
        ):
            assert all(adapter.remedy(lack, "1.0") for lack in GENERAL)
