"""The exact list of what an engine has cached, with a sequence barrier."""

from collections.abc import Iterator

from warmroute.adapters.embedded.engine.state import EngineState
from warmroute.adapters.embedded.server.event_log import extra_keys
from warmroute.adapters.embedded.server.kv_events import KVEventPublisher
from warmroute.adapters.kv_control import ResidentBlock, Snapshot, Tier


def read_snapshot(
    state: EngineState, publisher: KVEventPublisher | None, with_tokens: bool
) -> Snapshot:
    """List every resident block; on the compute thread, O(n log n).

    What was not published yet is published first, so that `Snapshot.seq` is the last
    batch whose events are contained: nothing is missing, and nothing is ahead.
    """
    state.contents.observer.batch_ended()
    return Snapshot(
        seq=None if publisher is None else publisher.last_seq,
        block_size=state.options.block_size,
        blocks=[
            _describe(state, block_hash, refs, tier, with_tokens)
            for block_hash, refs, tier in _residents(state)
        ],
    )


def host_blocks(state: EngineState) -> list[int]:
    """List the blocks in host memory, parents before children."""
    if state.host is None:
        return []
    return [block.block_hash for block in state.host.tier.snapshot()]


def _residents(state: EngineState) -> Iterator[tuple[int, int, Tier]]:
    for block in state.pool.snapshot():
        yield block.block_hash, block.refs, "gpu"
    for block_hash in host_blocks(state):
        yield block_hash, 0, "host"


def _describe(
    state: EngineState, block_hash: int, refs: int, tier: Tier, with_tokens: bool
) -> ResidentBlock:
    content = state.contents.get(block_hash)
    assert content is not None, "a resident block has no content"
    keys = extra_keys(content)
    return ResidentBlock(
        hash=block_hash,
        parent=content.parent_hash,
        refs=refs,
        tier=tier,
        token_ids=list(content.token_ids) if with_tokens else None,
        extra_keys=list(keys) if with_tokens and keys is not None else None,
    )
