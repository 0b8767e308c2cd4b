"""How what happens to blocks becomes batches of KV events."""

from typing import Any

import msgspec
import pytest

from warmroute.adapters.embedded.engine.contents import BlockContent
from warmroute.adapters.embedded.server.event_log import EventLog


class KeptBatches:
    """A publisher that keeps the batches, as plain lists and dicts."""

    def __init__(self) -> None:
        self.batches: list[list[dict[str, Any]]] = []

    def publish(self, events: list[Any]) -> int:
        self.batches.append(msgspec.to_builtins(events))
        return len(self.batches) - 1


@pytest.fixture
def kept() -> KeptBatches:
    return KeptBatches()


@pytest.fixture
def log(kept: KeptBatches) -> EventLog:
    return EventLog(kept, block_size=2)  # type: ignore[arg-type]


def block(number: int, parent: int | None, salt: str | None = None) -> BlockContent:
    return BlockContent(number, parent, (number, number + 100), salt)


def test_consecutive_blocks_of_a_chain_become_one_event(
    log: EventLog, kept: KeptBatches
) -> None:
    for number in (1, 2, 3):
        log.stored(block(number, number - 1 or None), "GPU")
    log.batch_ended()
    [[event]] = kept.batches
    assert event == {
        "type": "BlockStored",
        "block_hashes": [1, 2, 3],
        "parent_block_hash": None,
        "token_ids": [1, 101, 2, 102, 3, 103],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None, None, None],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


def test_a_chain_goes_on_in_the_next_step_under_its_parent(
    log: EventLog, kept: KeptBatches
) -> None:
    log.stored(block(1, None), "GPU")
    log.batch_ended()
    log.stored(block(2, 1), "GPU")
    log.batch_ended()
    assert [batch[0]["parent_block_hash"] for batch in kept.batches] == [None, 1]


def test_chains_and_tiers_are_events_of_their_own(
    log: EventLog, kept: KeptBatches
) -> None:
    log.stored(block(1, None), "GPU")
    log.stored(block(5, None), "GPU")
    log.stored(block(6, 5), "CPU")
    log.batch_ended()
    [batch] = kept.batches
    assert [(event["block_hashes"], event["medium"]) for event in batch] == [
        ([1], "GPU"),
        ([5], "GPU"),
        ([6], "CPU"),
    ]


def test_events_keep_the_order_in_which_things_happened(
    log: EventLog, kept: KeptBatches
) -> None:
    """A chain that is interrupted by a removal does not swallow it."""
    log.stored(block(1, None), "GPU")
    log.removed(1, "GPU")
    log.stored(block(1, None), "GPU")
    log.stored(block(2, 1), "GPU")
    log.cleared()
    log.batch_ended()
    [batch] = kept.batches
    assert [(event["type"], event.get("block_hashes")) for event in batch] == [
        ("BlockStored", [1]),
        ("BlockRemoved", [1]),
        ("BlockStored", [1, 2]),
        ("AllBlocksCleared", None),
    ]


def test_a_removal_names_one_block_and_its_tier(
    log: EventLog, kept: KeptBatches
) -> None:
    log.removed(1, "GPU")
    log.removed(2, "CPU")
    log.batch_ended()
    assert kept.batches == [
        [
            {
                "type": "BlockRemoved",
                "block_hashes": [1],
                "medium": "GPU",
                "group_idx": 0,
            },
            {
                "type": "BlockRemoved",
                "block_hashes": [2],
                "medium": "CPU",
                "group_idx": 0,
            },
        ]
    ]


def test_the_salt_stands_bare_in_the_first_block_only(
    log: EventLog, kept: KeptBatches
) -> None:
    log.stored(block(1, None, "pepper"), "GPU")
    log.stored(block(2, 1, "pepper"), "GPU")
    log.batch_ended()
    [[event]] = kept.batches
    assert event["extra_keys"] == [["pepper"], None]


def test_a_step_without_events_publishes_nothing(
    log: EventLog, kept: KeptBatches
) -> None:
    log.batch_ended()
    log.stored(block(1, None), "GPU")
    assert "1 events waiting" in repr(log)
    log.batch_ended()
    log.batch_ended()
    assert len(kept.batches) == 1
