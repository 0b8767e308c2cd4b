"""Internal waste: slots taken by requests that hold no token at their end."""

from collections.abc import Sequence

from lengths import Request

from warmroute.policies.kv.block_table import BlockTable
from warmroute.policies.kv.pool import BlockPool


def paged_waste(requests: Sequence[Request], block_size: int) -> float:
    """Return the share of empty slots when each request has a block table."""
    longest = max(request.total_tokens for request in requests)
    pool = BlockPool(longest // block_size + 2, block_size)
    slots = 0
    for request in requests:
        table = BlockTable(block_size)
        table.reserve(pool, request.total_tokens)
        slots += pool.num_referenced * block_size
        table.free(pool)
    return 1 - _tokens(requests) / slots


def slab_waste(requests: Sequence[Request], slab_tokens: int) -> float:
    """Return the share of empty slots when each request has a slab of one length."""
    return 1 - _tokens(requests) / (slab_tokens * len(requests))


def power_of_two_waste(requests: Sequence[Request]) -> float:
    """Return the share when each has a slab of the next power of two.

    The allocator would have to know the length of the output in advance.
    """
    slots = sum(power_of_two(request.total_tokens) for request in requests)
    return 1 - _tokens(requests) / slots


def power_of_two(tokens: int) -> int:
    """Return the least power of two that is not less than *tokens*."""
    return 1 << (tokens - 1).bit_length()


def _tokens(requests: Sequence[Request]) -> int:
    return sum(request.total_tokens for request in requests)
