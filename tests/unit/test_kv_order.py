"""Orders for the caches: what a prefix or session may be named with."""

import json

import pytest

from warmroute.policies.errors import ClientError
from warmroute.proxy.kv.order import Order


def order(verb: str, **fields: object) -> Order:
    return Order(verb, json.dumps(fields).encode())


class TestPrefix:
    @pytest.mark.parametrize(
        "text",
        ["+000000000000001", "0x00000000000001", " 1_000000000000", "१" * 16, "a" * 15],
    )
    def test_only_sixteen_hexadecimal_digits_are_a_prefix(self, text: str) -> None:
        with pytest.raises(ClientError, match="16 hexadecimal digits") as caught:
            order("evict", prefix=text)
        assert caught.value.status == 400

    def test_digits_may_be_of_either_case(self) -> None:
        assert order("evict", prefix="00000000000000aB").prefix == 0xAB

    @pytest.mark.parametrize("name", ["prefix", "session"])
    def test_what_belongs_to_prompts_is_refused_at_once(self, name: str) -> None:
        """Not in words about hashes, which nobody named."""
        fields = {name: "00000000000000ab", "skip_blocks": 2, "cache_salt": "s"}
        with pytest.raises(ClientError) as caught:
            order("evict", **fields)
        assert caught.value.status == 400
        assert "leave out cache_salt and skip_blocks" in caught.value.message
        assert "hashes name" not in caught.value.message

    @pytest.mark.parametrize(
        "fields",
        [{}, {"prompt": None}, {"prompt": "x", "session": "s"}, {"ttl_s": 1}],
    )
    def test_every_way_to_name_blocks_is_told(self, fields: dict[str, object]) -> None:
        """Those of an engine and those of the proxy alike."""
        with pytest.raises(ClientError) as caught:
            order("retain", **fields)
        assert caught.value.message == (
            "kv retain: blocks must be named in exactly one way (allowed: hashes, "
            "token_ids, prompt, messages, prefix, session)"
        )

    def test_a_restore_may_name_a_running_request(self) -> None:
        assert not order("restore", request_id="r").names_prefix
        with pytest.raises(ClientError, match="messages, request_id, prefix, session"):
            order("restore", request_id="r", session="s")

    def test_the_verbs_own_fields_are_checked_at_once(self) -> None:
        with pytest.raises(ClientError, match="ttl_s"):
            order("retain", session="alice")


class TestRequest:
    def test_it_is_read_once_for_all_backends(self) -> None:
        """A million token ids take the loop a tenth of a second each time."""
        told = order("evict", token_ids=[1, 2, 3])
        assert told.request() is told.request()

    def test_what_a_prefix_stands_for_is_each_backends_own(self) -> None:
        told = order("evict", prefix="00000000000000ab")
        assert [told.request([key]).hashes for key in (1, 2)] == [[1], [2]]  # type: ignore[attr-defined]
