"""What the verbs of KV control do to the engine's state, on the compute thread."""

from collections.abc import Iterable

from warmroute.adapters.embedded.engine.state import EngineState
from warmroute.adapters.embedded.server.kv_snapshot import host_blocks
from warmroute.adapters.kv_control import Evicted, Flushed, Kept, Reason, Retained


def flush_all(state: EngineState) -> Flushed:
    """Drop everything that nobody uses and that is not retained.

    Copies on the host go too: what follows a flush is cold, whatever the tier.
    """
    before = state.pool.num_cached + len(host_blocks(state))
    is_empty = state.flush()
    return Flushed(
        flushed=is_empty,
        dropped=before - state.pool.num_cached,
        referenced=state.pool.num_referenced,
    )


def evict_blocks(state: EngineState, hashes: list[int]) -> Evicted:
    """Drop named blocks from pages, suffix first, and their copies on the host.

    A chain is only ever cut from its end: a block stays while one behind it does,
    because that one could never be found again and would only take room.
    """
    dropped = dict.fromkeys(state.pool.evict(hashes))
    refs = {one.block_hash: one.refs for one in state.pool.snapshot()}
    kept = []
    for block_hash in hashes:
        if block_hash in refs:
            reason: Reason = "referenced" if refs[block_hash] else "followed"
            kept.append(Kept(hash=block_hash, reason=reason))
        elif state.host is not None and state.host.drop(block_hash):
            dropped[block_hash] = None
        elif block_hash not in dropped:
            kept.append(Kept(hash=block_hash, reason="absent"))
    return Evicted(evicted=list(dropped), kept=kept)


def retain_blocks(state: EngineState, hashes: list[int], ttl_s: float) -> Retained:
    """Keep the leading resident blocks of those named, as far as the cap allows."""
    retained = state.retention.retain(hashes, ttl_s)
    return Retained(
        retained=retained,
        named=len(hashes),
        total=state.retention.num_blocks,
        cap=state.retention.cap_blocks,
    )


def cached_blocks(state: EngineState, hashes: Iterable[int]) -> list[int]:
    """List those of *hashes* that are on pages, parents before children."""
    wanted = set(hashes)
    return [
        block.block_hash
        for block in state.pool.snapshot()
        if block.block_hash in wanted
    ]
