"""Replay a trace on one cache under one policy."""

from collections.abc import Callable, Sequence

from traces import Request

from warmroute.policies.eviction.base import BlockEviction, BlockFacts
from warmroute.policies.eviction.belady import most_hits

PROGRESS_EVERY = 500


class TraceClock:
    """The time of the request at hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Cache:
    """Blocks without content under one policy, beside the requests' own memory.

    Blocks of a prompt come in one by one, the tail first, each for a victim that may
    be of the same prompt: what a long prompt leaves behind is the policy's choice.
    """

    def __init__(self, capacity: int, policy: BlockEviction) -> None:
        self.capacity = capacity
        self.policy = policy
        self._cached: set[int] = set()

    def serve(self, request: Request) -> int:
        """Serve one prompt and return how many leading blocks were cached."""
        matched = self._num_matched(request.blocks)
        policy, cached, blocks = self.policy, self._cached, request.blocks
        for depth in reversed(range(len(blocks))):
            block = blocks[depth]
            if block in cached:
                policy.touched(block)
                continue
            if len(cached) >= self.capacity:
                cached.difference_update(policy.evict(1))
            policy.inserted(block, self._facts(request, depth))
            cached.add(block)
        return matched

    def _num_matched(self, blocks: Sequence[int]) -> int:
        for depth, block in enumerate(blocks):
            if block not in self._cached:
                return depth
        return len(blocks)

    def _facts(self, request: Request, depth: int) -> BlockFacts:
        blocks = request.blocks
        parent = blocks[depth - 1] if depth else None
        return BlockFacts(depth, parent, len(blocks), request.turn)


class Pool(Cache):
    """The same, but running requests hold their blocks, as in a block pool.

    Cached blocks of the prompt are touched and held, victims are asked for the
    missing ones, these come in held, and all are freed at the end, the tail first.
    """

    def serve(self, request: Request) -> int:
        """Serve one prompt and return how many leading blocks were cached."""
        matched = self._num_matched(request.blocks)
        policy, cached, blocks = self.policy, self._cached, request.blocks
        missing = []
        for depth, block in enumerate(blocks):
            if block in cached:
                policy.touched(block)
                policy.held(block)
            else:
                missing.append(depth)
        num_over = len(cached) + len(missing) - self.capacity
        cached.difference_update(policy.evict(max(0, num_over)))
        for depth in missing[: self.capacity - len(cached)]:
            policy.inserted(blocks[depth], self._facts(request, depth))
            policy.held(blocks[depth])
            cached.add(blocks[depth])
        for block in reversed(blocks):
            if block in cached:
                policy.freed(block)
        return matched


def hit_percent(
    requests: Sequence[Request],
    capacity: int,
    build: Callable[[int, TraceClock], BlockEviction],
    kind: type[Cache],
    progress: Callable[[float], None],
) -> float:
    """Return the percentage of blocks found in a cache of *capacity* blocks."""
    clock = TraceClock()
    cache = kind(capacity, build(capacity, clock))
    hits = 0
    for number, request in enumerate(requests):
        if number % PROGRESS_EVERY == 0:
            progress(number / len(requests))
        clock.now_s = request.time_s
        hits += cache.serve(request)
    return 100.0 * hits / _num_blocks(requests)


def bound_percent(requests: Sequence[Request], capacity: int) -> float:
    """Return the percentage of hits that no policy can exceed."""
    hits = most_hits([request.blocks for request in requests], capacity)
    return 100.0 * hits / _num_blocks(requests)


def ideal_percent(requests: Sequence[Request]) -> float:
    """Return the percentage of hits of a cache that never evicts."""
    distinct = {block for request in requests for block in request.blocks}
    return 100.0 * (1.0 - len(distinct) / _num_blocks(requests))


def _num_blocks(requests: Sequence[Request]) -> int:
    return sum(len(request.blocks) for request in requests)
