"""A pooled cache that knows the future: what eviction alone could still win."""

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count

from warmroute.proxy.replay.trace import TraceRequest

_NEVER = 1 << 62


class BeladyCache:
    """Keep the blocks that are used again soonest (Belady 1966, MIN).

    Blocks that nobody uses again are not taken in. A block is never used before the
    one in front of it, so what goes of a prompt is its end.

    Args:
        block_size: Tokens a block.
        capacity_tokens: Tokens beyond which blocks go.
        future: All requests, in the order in which they will be admitted.
    """

    __slots__ = (
        "_block_size",
        "_farthest",
        "_max_blocks",
        "_num_seen",
        "_resident",
        "_uses",
    )

    def __init__(
        self, block_size: int, capacity_tokens: int, future: Sequence[TraceRequest]
    ) -> None:
        self._block_size = block_size
        self._max_blocks = capacity_tokens // block_size
        self._resident: dict[int, int] = {}
        self._farthest: list[tuple[int, int, int]] = []
        self._num_seen = count()
        self._uses: dict[int, list[int]] = {}
        for place in range(len(future) - 1, -1, -1):
            for block in future[place].blocks:
                self._uses.setdefault(block, []).append(place)

    def __repr__(self) -> str:
        return f"<BeladyCache [Blocks: {len(self._resident)} of {self._max_blocks}]>"

    def cached_tokens(self, request: TraceRequest) -> int:
        """Count the prompt tokens that need not be computed; changes nothing."""
        matched = 0
        for block in request.blocks:
            if block not in self._resident:
                break
            matched += 1
        most = (request.prompt_tokens - 1) // self._block_size
        return self._block_size * min(matched, most)

    def admit(self, request: TraceRequest) -> None:
        """Take in the next request of the future. O(blocks log blocks)."""
        now = next(self._num_seen)
        for depth, block in enumerate(request.blocks):
            uses = self._uses[block]
            while uses and uses[-1] <= now:
                uses.pop()
            if uses:
                self._resident[block] = uses[-1]
                heappush(self._farthest, (-uses[-1], -depth, block))
            else:
                self._resident.pop(block, None)
        while len(self._resident) > self._max_blocks:
            next_use, _, block = heappop(self._farthest)
            if self._resident.get(block, _NEVER) == -next_use:
                del self._resident[block]
