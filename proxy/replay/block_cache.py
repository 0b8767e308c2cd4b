"""The prefix cache of a simulated engine: single blocks, least recently used out."""

from collections import OrderedDict
from collections.abc import Container

from warmroute.proxy.replay.trace import TraceRequest


class BlockCache:
    """Which blocks are resident, oldest use first.

    A prompt touches its deepest block first, so that what goes first of it is its
    end. One token at least is always computed: engines need its logits.

    Args:
        block_size: Tokens a block.
        capacity_tokens: Tokens beyond which the oldest blocks go, rounded down to
            whole blocks; None keeps everything.
    """

    __slots__ = ("_block_size", "_max_blocks", "_resident")

    def __init__(self, block_size: int, capacity_tokens: int | None) -> None:
        self._block_size = block_size
        self._max_blocks = (
            None if capacity_tokens is None else capacity_tokens // block_size
        )
        self._resident: OrderedDict[int, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"<BlockCache [Blocks: {len(self)}, at most: {self._max_blocks}]>"

    def __len__(self) -> int:
        return len(self._resident)

    def cached_tokens(
        self, request: TraceRequest, promised: Container[int] = ()
    ) -> int:
        """Count the prompt tokens that need not be computed; changes nothing.

        O(blocks that match).

        Args:
            request: What is asked.
            promised: Blocks that count as resident.
        """
        resident, matched = self._resident, 0
        for block in request.blocks:
            if block not in resident and block not in promised:
                break
            matched += 1
        most = (request.prompt_tokens - 1) // self._block_size
        return self._block_size * min(matched, most)

    def admit(self, request: TraceRequest) -> None:
        """Make the full blocks of *request* resident and newest. O(blocks)."""
        resident, most = self._resident, self._max_blocks
        for block in reversed(request.blocks):
            if block in resident:
                resident.move_to_end(block)
            else:
                resident[block] = None
        if most is not None:
            for _ in range(len(resident) - most):
                resident.popitem(last=False)
