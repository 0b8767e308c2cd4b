"""The longest cached prefix of one prompt, for all backends at once."""

from collections.abc import Sequence

from warmroute.policies.kv.holders import NUM_TIERS, Holders
from warmroute.policies.kv.run import Run


class Match:
    """Leading blocks of a prompt by tier; lists are indexed by backend slot.

    Attributes:
        depth: Leading blocks that anybody has, or had before others' longer chains.
        gpu: Leading blocks resident on the GPU.
        host: Blocks behind those that are there or in host memory; None when no
            backend reports tiers.
        disk: Blocks behind those that are in any tier; None likewise.
    """

    __slots__ = ("depth", "disk", "gpu", "host")

    def __init__(self, path: Sequence[Run], depth: int, holders: Holders) -> None:
        self.depth = depth
        self.gpu = _resolve(path, depth, holders, 1)
        self.host: list[int] | None = None
        self.disk: list[int] | None = None
        if holders.has_tiers:
            upper = _resolve(path, depth, holders, 2)
            lower = _resolve(path, depth, holders, 3)
            self.host = [b - a for a, b in zip(self.gpu, upper, strict=True)]
            self.disk = [c - b for b, c in zip(upper, lower, strict=True)]

    def __repr__(self) -> str:
        return f"<Match [Blocks: {self.depth}, gpu: {self.gpu}]>"


def _resolve(
    path: Sequence[Run], depth: int, holders: Holders, num_tiers: int
) -> list[int]:
    """Return for each slot the leading blocks in the first *num_tiers* tiers.

    Each backend is looked at once, in the run where it stops: O(runs + backends).
    """
    found = [0] * holders.num_slots
    alive = holders.gpu_bits
    for run in path:
        full = run.full
        if num_tiers > 1:
            full |= full >> 1
            if num_tiers > 2:
                full |= run.full >> 2
        if run is path[-1] and run.end > depth:
            full = 0
        lost = alive & ~full
        if lost:
            if run.start or run.partial or not full:
                _stop(found, lost, run, depth, num_tiers)
            alive ^= lost
            if not alive:
                return found
    while alive and path:
        low = alive & -alive
        alive ^= low
        found[(low.bit_length() - 1) // NUM_TIERS] = depth
    return found


def _stop(found: list[int], lost: int, run: Run, depth: int, num_tiers: int) -> None:
    """Note for the backends in *lost* how far into *run* they reach."""
    start, held = run.start, 0
    has_parts = run.partial is not None or num_tiers > 1 or run.end > depth
    while lost:
        low = lost & -lost
        lost ^= low
        holder = low.bit_length() - 1
        if has_parts:
            held = max(run.held(holder + tier) for tier in range(num_tiers))
            held = min(held, depth - start)
        found[holder // NUM_TIERS] = start + held
