"""A list of what an engine has cached, as the events that would have told it."""

from warmroute.adapters.kv_control import Snapshot
from warmroute.adapters.kv_events.wire import Batch, Event, Stored

_MEDIUMS = {"gpu": "GPU", "host": "CPU", "disk": "DISK"}


def as_batch(snapshot: Snapshot) -> Batch:
    """Return one "stored" a block; blocks without tokens say nothing. O(tokens)."""
    events: list[Event] = [
        Stored(
            [block.hash],
            block.parent,
            block.token_ids,
            snapshot.block_size,
            medium=_MEDIUMS.get(block.tier, block.tier),
            extra_keys=[block.extra_keys],
        )
        for block in snapshot.blocks
        if block.token_ids is not None and len(block.token_ids) == snapshot.block_size
    ]
    return Batch(0.0, events, None)
