"""A list of what an engine has cached, as the events that would have told it."""

from warmroute.adapters.kv_control import Snapshot
from warmroute.adapters.kv_events.wire import Batch, Event, Stored

_BATCH = 64
_MEDIUMS = {"gpu": "GPU", "host": "CPU", "disk": "DISK"}


def as_batches(snapshot: Snapshot) -> list[Batch]:
    """Return one "stored" a block, 64 a batch; blocks without tokens say nothing."""
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
    return [
        Batch(0.0, events[at : at + _BATCH], None)
        for at in range(0, len(events), _BATCH)
    ]
