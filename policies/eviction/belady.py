"""The most hits that any eviction could have had: an offline bound."""

from collections.abc import Sequence
from heapq import heappop, heappush

from warmroute.policies.errors import PolicyError


def most_hits(requests: Sequence[Sequence[int]], capacity: int) -> int:
    """Count the block hits of Belady's rule with bypass over a whole trace.

    Belady 1966, "A Study of Replacement Algorithms for a Virtual-Storage Computer":
    keep the blocks whose next use is nearest. A block that is never used again is
    not kept, and the deeper one goes first among equals. The blocks of one request
    are used at one time, so the capacity holds between requests, not within one.

    Blocks are known by the hash of their chain, hence one is never used before those
    in front of it: the rule evicts leaf first by itself, and its block hits are
    prefix hits.

    Args:
        requests: Block hashes of each request in the order of the chain.
        capacity: Blocks that the cache can hold between two requests.

    Returns:
        Blocks that were cached when a request wanted them. O(n log n) over all uses.

    Raises:
        PolicyError: The capacity is negative.
    """
    if capacity < 0:
        raise PolicyError(
            f"belady: a capacity of {capacity} blocks (allowed: 0 or more)"
        )
    return _count_hits(requests, _next_uses(requests), capacity)


def _count_hits(
    requests: Sequence[Sequence[int]],
    next_uses: Sequence[Sequence[int | None]],
    capacity: int,
) -> int:
    cached: dict[int, int] = {}  # to the next use
    furthest: list[tuple[int, int, int]] = []
    hits = 0
    for blocks, following in zip(requests, next_uses, strict=True):
        for depth, (block, next_use) in enumerate(zip(blocks, following, strict=True)):
            hits += cached.pop(block, None) is not None
            if next_use is not None:
                cached[block] = next_use
                heappush(furthest, (-next_use, -depth, block))
        while len(cached) > capacity:
            next_use, _, block = heappop(furthest)
            if cached.get(block) == -next_use:
                del cached[block]
    return hits


def _next_uses(requests: Sequence[Sequence[int]]) -> list[list[int | None]]:
    """For each block of each request, say which request wants it next."""
    coming: dict[int, int] = {}
    following: list[list[int | None]] = []
    for index in range(len(requests) - 1, -1, -1):
        blocks = requests[index]
        following.append([coming.get(block) for block in blocks])
        coming.update(dict.fromkeys(blocks, index))
    return following[::-1]
