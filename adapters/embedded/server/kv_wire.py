"""KV events on the wire, as vLLM 0.32 sends them (``vllm.distributed.kv_events``).

A message has the frames topic, sequence number (8 bytes, big-endian) and payload.
The payload is MessagePack: a batch is an array, its events are maps tagged by
``type``, and trailing fields that have no value are left out.
"""

from msgspec import Struct

SPEC_KIND = "full_attention"
SEQ_BYTES = 8
END_SEQ = (-1).to_bytes(SEQ_BYTES, "big", signed=True)
"""Sequence number of the message that ends a replay."""


class BlockStored(Struct, frozen=True, tag=True, omit_defaults=True, kw_only=True):
    """Tell that consecutive blocks of one chain became resident in a tier.

    Args:
        block_hashes: Their hashes, the head first.
        parent_block_hash: Hash of the block in front of the first one.
        token_ids: Their tokens, ``block_size`` each.
        block_size: Tokens a block.
        lora_id: Always None here: this engine has no adapters.
        medium: Tier.
        lora_name: Always None here.
        extra_keys: One entry a block: what else its hash covers, or None. The salt
            of a request stands bare, in the first block of its chain only.
        group_idx: KV cache group; this engine has one.
        kv_cache_spec_kind: Attention of the group.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[str] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(Struct, frozen=True, tag=True, omit_defaults=True):
    """Tell that blocks left a tier."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(Struct, frozen=True, tag=True):
    """Tell that every block left every tier."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventBatch(Struct, frozen=True, array_like=True, omit_defaults=True):
    """Hold the events of one step.

    Args:
        ts: Wall-clock time in seconds.
        events: In the order in which they happened.
        data_parallel_rank: Rank of the publisher.
    """

    ts: float
    events: list[KVEvent]
    data_parallel_rank: int | None = None
