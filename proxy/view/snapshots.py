"""A list of what an engine has cached, as the events that would have told it."""

from collections.abc import Iterator

from warmroute.adapters.kv_control import ResidentBlock, Snapshot
from warmroute.adapters.kv_events.wire import Batch, Event, Stored

_BATCH = 64
_TOKEN_BYTES = 12
_BLOCK_BYTES = 256
_NUM_TIERS = 4
_LEAST_BYTES = 8 << 20
_UNKNOWN_BYTES = 64 << 20
_MOST_BYTES = 512 << 20
_MEDIUMS = {"gpu": "GPU", "host": "CPU", "disk": "DISK"}


def largest_bytes(capacity_tokens: int | None, block_size: int | None) -> int:
    """Return how large a list of all blocks can be, as JSON with their tokens.

    Args:
        capacity_tokens: What the engine's cache holds; lower tiers may hold three
            times as much besides. None is unknown.
        block_size: Tokens a block; None is unknown, and may be 1.
    """
    if capacity_tokens is None:
        return _UNKNOWN_BYTES
    num_blocks = capacity_tokens // (block_size or 1)
    most = capacity_tokens * _TOKEN_BYTES + num_blocks * _BLOCK_BYTES
    return min(max(_NUM_TIERS * most, _LEAST_BYTES), _MOST_BYTES)


def as_batches(snapshot: Snapshot) -> Iterator[Batch]:
    """Yield one "stored" a block, 64 a batch; blocks without tokens say nothing."""
    blocks = [
        block
        for block in snapshot.blocks
        if block.token_ids is not None and len(block.token_ids) == snapshot.block_size
    ]
    for at in range(0, len(blocks), _BATCH):
        yield Batch(0.0, _events(snapshot, blocks[at : at + _BATCH]), None)


def _events(snapshot: Snapshot, blocks: list[ResidentBlock]) -> list[Event]:
    return [
        Stored(
            [block.hash],
            block.parent,
            block.token_ids or [],
            snapshot.block_size,
            medium=_MEDIUMS.get(block.tier, block.tier),
            extra_keys=[block.extra_keys],
        )
        for block in blocks
    ]
