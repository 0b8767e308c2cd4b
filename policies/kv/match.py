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
        self.gpu = _spread(path, depth, holders, holders.gpu_tiers)
        self.host: list[int] | None = None
        self.disk: list[int] | None = None
        if holders.has_tiers:
            upper = _spread(path, depth, holders, 3)
            lower = _spread(path, depth, holders, 4)
            self.host = [b - a for a, b in zip(self.gpu, upper, strict=True)]
            self.disk = [c - b for b, c in zip(upper, lower, strict=True)]

    def __repr__(self) -> str:
        return f"<Match [Blocks: {self.depth}, gpu: {self.gpu}]>"


def find_reaches(
    path: Sequence[Run], depth: int, alive: int, num_tiers: int = 1
) -> list[tuple[int, int]]:
    """Return how far backends reach down a path, those that reach as far together.

    Each backend is looked at once, in the run where it stops: O(runs + backends).

    Args:
        path: The runs that a chain passes.
        depth: Blocks of the chain in them.
        alive: The backends in question, as bits of their GPU holders.
        num_tiers: How many tiers count, from the GPU on.

    Returns:
        Bits of backends, and the leading blocks that they have; none without any.
    """
    found: list[tuple[int, int]] = []
    for run in path:
        full = run.full
        if num_tiers > 1:
            full |= full >> 1
            if num_tiers > 2:
                full |= run.full >> 2
                if num_tiers > 3:
                    full |= run.full >> 3
        lost = alive & ~full
        if lost:
            alive ^= lost
            if run.partial is not None:
                lost = _find_parts(found, lost, run, depth, num_tiers)
            if lost and run.start:
                found.append((lost, run.start))
            if not alive:
                return found
    if alive and depth:
        found.append((alive, depth))
    return found


def _find_parts(
    found: list[tuple[int, int]], lost: int, run: Run, depth: int, num_tiers: int
) -> int:
    """Note the backends of *lost* that have a part of *run*; return the others."""
    most: dict[int, int] = {}
    for holder, held in (run.partial or {}).items():
        tier = holder % NUM_TIERS
        bit = 1 << holder - tier
        if tier < num_tiers and lost & bit:
            most[bit] = max(held, most.get(bit, 0))
    for bit, held in most.items():
        found.append((bit, min(run.start + held, depth)))
        lost ^= bit
    return lost


def _spread(
    path: Sequence[Run], depth: int, holders: Holders, num_tiers: int
) -> list[int]:
    """Return the leading blocks of each slot in the first *num_tiers* tiers."""
    blocks = [0] * holders.num_slots
    for bits, num_blocks in find_reaches(path, depth, holders.gpu_bits, num_tiers):
        while bits:
            low = bits & -bits
            bits ^= low
            blocks[(low.bit_length() - 1) // NUM_TIERS] = num_blocks
    return blocks
