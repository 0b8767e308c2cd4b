"""The contract of KV control: what requests may hold, and how answers travel."""

import inspect
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from warmroute.adapters import kv_client, kv_control
from warmroute.adapters.embedded.server import kv_verbs
from warmroute.adapters.kv_control import (
    SHAPES,
    VERBS,
    KVControl,
    decode_request,
    perform,
    shape_of,
)
from warmroute.adapters.kv_requests import MAX_BLOCKS, BlocksRequest, Request
from warmroute.policies.errors import ClientError


def decode(verb: str, **fields: Any) -> Request:
    return decode_request(verb, msgspec.json.encode(fields))


class TestRequests:
    def test_an_empty_body_has_no_parameters(self) -> None:
        for verb in ("flush", "snapshot", "policy", "budget", "capabilities"):
            assert isinstance(decode_request(verb, b""), SHAPES[verb].request)

    @pytest.mark.parametrize(
        "names",
        [
            {"hashes": [0, 2**64 - 1, -(2**63)]},
            {"token_ids": [0, 2**32 - 1], "skip_blocks": 3},
            {"prompt": "Hello", "cache_salt": "pepper"},
            {
                "messages": [{"role": "user", "content": "Hello"}],
                "tools": [{"type": "function"}],
                "add_generation_prompt": False,
            },
        ],
    )
    def test_blocks_are_named_in_each_of_four_ways(self, names: dict[str, Any]) -> None:
        request = decode("evict", **names)
        assert msgspec.to_builtins(request) == names

    @pytest.mark.parametrize(
        ("verb", "fields", "told"),
        [
            ("evict", {}, "exactly one way"),
            ("evict", {"hashes": [1], "prompt": "x"}, "exactly one way"),
            ("evict", {"hashes": []}, "length >= 1"),
            ("evict", {"hashes": [2**64]}, "does not fit 64 bits"),
            ("evict", {"hashes": [-(2**63) - 1]}, "does not fit 64 bits"),
            ("evict", {"hashes": [1.5]}, "Expected `int`"),
            ("evict", {"hashes": [1], "skip_blocks": 1}, "leave out"),
            ("evict", {"hashes": [1], "cache_salt": "x"}, "leave out"),
            ("evict", {"token_ids": [-1]}, ">= 0"),
            ("evict", {"token_ids": [2**32]}, "<= 4294967295"),
            ("evict", {"prompt": ""}, "length >= 1"),
            ("evict", {"prompt": "x", "tools": []}, "tools belong to messages"),
            ("evict", {"prompt": "x", "skip_blocks": -1}, ">= 0"),
            ("evict", {"promt": "x"}, "fields of evict: hashes, token_ids, prompt"),
            ("retain", {"prompt": "x"}, "missing required field `ttl_s`"),
            ("retain", {"prompt": "x", "ttl_s": 0}, "> 0"),
            ("retain", {"prompt": "x", "ttl_s": 86_401}, "<= 86400"),
            ("flush", {"force": True}, "fields of flush: none"),
            ("policy", {"options": {}}, "give its name"),
            ("restore", {}, "allowed: hashes, token_ids, prompt, messages, request_id"),
            ("restore", {"hashes": [1], "request_id": "r"}, "exactly one way"),
            ("restore", {"hashes": [1], "hold_tokens": 9}, "give its request_id"),
            ("restore", {"request_id": "r", "cache_salt": "x"}, "leave out"),
            ("restore", {"request_id": "r", "hold_tokens": 0}, ">= 1"),
            ("evict", {"request_id": "r"}, "fields of evict"),
            ("budget", {"host_bytes": 9}, "needs its method"),
            ("budget", {"method": "sinks", "host_bytes": 0}, ">= 1"),
            ("evict", {"messages": [{}] * 16_385}, "length <= 16384"),
            ("evict", {"messages": [{}], "tools": [{}] * 1025}, "length <= 1024"),
            ("budget", {"tokens": 5}, "needs its method"),
            ("budget", {"alpha": 4.0}, "needs its method"),
            ("budget", {"method": "infinigen", "alpha": -1.0}, ">= 0"),
            ("budget", {"method": "infinigen", "partial": 2.0}, "<= 1"),
            ("budget", {"method": "h2o", "tokens": 5, "share": 0.5}, "give one"),
            ("budget", {"method": "h2o", "share": 1.1}, "<= 1"),
        ],
    )
    def test_what_is_wrong_is_refused_in_words(
        self, verb: str, fields: dict[str, Any], told: str
    ) -> None:
        with pytest.raises(ClientError) as caught:
            decode(verb, **fields)
        assert told in caught.value.message
        assert (caught.value.status, caught.value.code) == (400, "kv_request_invalid")

    def test_too_many_hashes_are_refused(self) -> None:
        decode("evict", hashes=list(range(MAX_BLOCKS)))
        for count in (MAX_BLOCKS + 1, 1_000_000):
            with pytest.raises(ClientError, match="length <= 65536"):
                decode("evict", hashes=list(range(count)))

    @pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b'"x"', b"[" * 100_000])
    def test_a_body_that_is_no_object_is_refused(self, body: bytes) -> None:
        with pytest.raises(ClientError) as caught:
            decode_request("evict", body)
        assert caught.value.status == 400

    def test_an_unknown_verb_is_not_found_and_the_near_one_named(self) -> None:
        with pytest.raises(ClientError, match="did you mean 'evict'") as caught:
            shape_of("evikt")
        assert (caught.value.status, caught.value.code) == (404, "kv_verb_unknown")


class TestContract:
    @pytest.mark.parametrize(
        "kind", [kv_verbs.EngineKVControl, kv_client.KVControlClient]
    )
    def test_both_ends_have_every_verb_with_its_types(self, kind: type) -> None:
        for verb, shape in SHAPES.items():
            promised = inspect.signature(getattr(KVControl, verb))
            assert inspect.signature(getattr(kind, verb)) == promised
            assert promised.parameters["request"].annotation is shape.request
            assert promised.return_annotation is shape.answer

    def test_verbs_are_those_of_the_design(self) -> None:
        assert set(VERBS) == {
            *("snapshot", "flush", "evict", "retain", "release"),
            *("demote", "offload", "restore", "policy", "budget"),
        }

    async def test_perform_asks_the_verb_with_its_request(self) -> None:
        class Echo:
            async def evict(self, request: BlocksRequest) -> kv_control.Evicted:
                return kv_control.Evicted(evicted=request.hashes or [], kept=[])

        request = BlocksRequest(hashes=[7])
        answer = await perform(Echo(), "evict", request)  # type: ignore[arg-type]
        assert answer == kv_control.Evicted(evicted=[7], kept=[])

    def test_a_resident_block_leaves_out_what_was_not_asked_for(self) -> None:
        block = kv_control.ResidentBlock(
            hash=2**64 - 1, parent=None, refs=0, tier="gpu"
        )
        assert msgspec.json.encode(block) == (
            b'{"hash":18446744073709551615,"parent":null,"refs":0,"tier":"gpu"}'
        )


class TestDocs:
    DOCS = Path(__file__).parents[2] / "docs" / "kv-control.md"

    def test_every_verb_is_documented_with_a_call(self) -> None:
        text = self.DOCS.read_text()
        for verb in SHAPES:
            assert f"**{verb}**" in text
        assert set(re.findall(r"curl \$KV/(\w+)", text)) >= set(SHAPES) - {"restore"}

    def test_every_call_in_the_docs_is_a_valid_request(self) -> None:
        calls = re.findall(r"curl \$KV/(\w+) --json '(.*)'", self.DOCS.read_text())
        assert len(calls) > 8
        for verb, body in calls:
            filled = re.sub(r"(\d)\.\.\.", r"\1", body).replace(", ...]", "]")
            decode_request(verb, filled.encode())
