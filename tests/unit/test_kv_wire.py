"""Batches of KV events as engines send them, and as they should not."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.adapters.kv_events.wire import (
    Cleared,
    Removed,
    Stored,
    block_key,
    decode,
    tier_of,
)
from warmroute.policies.errors import ProtocolMismatch

# As vLLM 0.32 and SGLang 0.5.23 sent them, with shorter blocks.
VLLM = [
    1795968609.9512813,
    [
        {
            "type": "BlockStored",
            "block_hashes": [8158371421713607858],
            "parent_block_hash": None,
            "token_ids": [1, 2, 3, 4],
            "block_size": 4,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [None],
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        },
        {
            "type": "BlockRemoved",
            "block_hashes": [15784002593205631513],
            "medium": "GPU",
            "group_idx": 0,
        },
        {"type": "AllBlocksCleared"},
    ],
    0,
]
SGLANG = [
    1795968611.25,
    [
        {
            "type": "BlockStored",
            "block_hashes": [6030375441193393179, -5],
            "parent_block_hash": None,
            "token_ids": [1, 2, 3, 4],
            "block_size": 2,
            "lora_id": None,
            "medium": "CPU_PINNED",
        },
    ],
    None,
]
ARRAYS = [
    1.5,
    [
        ["BlockStored", [7, b"\1" * 32], 5, [1, 2, 3, 4], 2, None],
        ["BlockRemoved", [7]],
        ["AllBlocksCleared"],
    ],
]


def packed(batch: object) -> bytes:
    return msgspec.msgpack.encode(batch)


def test_vllm_is_read() -> None:
    batch = decode(packed(VLLM))
    first, second, third = batch.events
    assert isinstance(first, Stored)
    assert first.token_ids == [1, 2, 3, 4]
    assert (first.group_idx, first.kv_cache_spec_kind) == (0, "full_attention")
    assert isinstance(second, Removed)
    assert second.block_hashes == [15784002593205631513]
    assert isinstance(third, Cleared)
    assert (batch.dp_rank, batch.num_skipped) == (0, 0)
    assert batch.timestamp == 1795968609.9512813


def test_sglang_is_read() -> None:
    (event,) = decode(packed(SGLANG)).events
    assert isinstance(event, Stored)
    assert [block_key(one) for one in event.block_hashes] == [
        6030375441193393179,
        2**64 - 5,
    ]
    assert tier_of(event.medium) == "host"


def test_arrays_of_older_releases_are_read() -> None:
    first, second, third = decode(packed(ARRAYS)).events
    assert isinstance(first, Stored)
    assert (first.parent_block_hash, first.block_size, first.medium) == (5, 2, None)
    assert block_key(first.block_hashes[1]) == int.from_bytes(b"\1" * 8, "big")
    assert isinstance(second, Removed)
    assert isinstance(third, Cleared)


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "BlockMoved", "block_hashes": [1]},
        {"type": "BlockStored", "block_hashes": [1]},
        {**VLLM[1][0], "token_ids": [1, 2, 3]},  # type: ignore[index]
        {**VLLM[1][0], "block_size": 0, "token_ids": []},  # type: ignore[index]
        {**VLLM[1][0], "block_hashes": "x"},  # type: ignore[index]
        ["BlockMoved", [1]],
        ["BlockRemoved"],
        "BlockRemoved",
        None,
        17,
        {},
        [],
    ],
)
def test_a_bad_event_is_skipped_alone(bad: object) -> None:
    timestamp, (first, *others), rank = VLLM  # type: ignore[misc]
    batch = decode(packed([timestamp, [first, bad, *others], rank]))  # type: ignore[has-type]
    assert [type(event) for event in batch.events] == [Stored, Removed, Cleared]
    assert batch.num_skipped == 1


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"x" * 100,
        packed({}),
        packed([]),
        packed([1.0]),
        packed(["t", []]),
    ],
)
def test_no_batch_is_an_error(payload: bytes) -> None:
    with pytest.raises(ProtocolMismatch, match=rf"message of {len(payload)} bytes"):
        decode(payload)


def test_fields_of_later_releases_are_ignored() -> None:
    event = {**VLLM[1][0], "locality": "near"}  # type: ignore[index]
    batch = decode(packed([1.0, [event], 0, "more"]))
    assert len(batch.events) == 1


@pytest.mark.parametrize(
    ("medium", "tier"),
    [
        (None, "gpu"),
        ("GPU", "gpu"),
        ("CPU", "host"),
        ("cpu_pinned", "host"),
        ("DISK", "disk"),
        ("SHARED_STORAGE", "disk"),
    ],
)
def test_a_medium_is_a_tier(medium: str | None, tier: str) -> None:
    assert tier_of(medium) == tier


words = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text()
anything = st.recursive(
    words | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(anything)
def test_nothing_else_is_raised(content: Any) -> None:
    """Whatever comes over the wire is a batch or a mismatch."""
    for payload in (packed(content), packed([1.0, [content], 0])):
        with suppress(ProtocolMismatch):
            decode(payload)


@given(st.binary(max_size=64))
def test_no_bytes_raise_anything_else(payload: bytes) -> None:
    with suppress(ProtocolMismatch):
        decode(payload)
