"""A first-in first-out queue in which some blocks wait without losing their place."""

from collections.abc import Iterable

from warmroute.policies.eviction.block_order import block_order
from warmroute.policies.kv.block_heap import BlockHeap
from warmroute.policies.kv.shards import LAST, Shards


class BlockQueue:
    """Blocks in the order in which they came, with some that may not go yet.

    A blocked one keeps its place: if others of a later place went meanwhile, it is at
    the front once it is unblocked, and if it was there before, where it was. Blocked
    ones are not among those that may go, so that none has to be passed over. O(1) a
    call, and O(log n) for what was blocked.

    Args:
        most: Blocks that there can be.
    """

    __slots__ = (
        "_again",
        "_front",
        "_num_blocks",
        "_order",
        "_passed",
        "_turn",
        "_turns",
    )

    def __init__(self, most: int) -> None:
        self._turns: Shards[int, int] = Shards()  # of all, blocked ones included
        self._num_blocks = 0
        self._order = block_order(most)  # that were never blocked
        self._again = BlockHeap()  # that were, and may go again; by turn
        self._turn = 0  # of the one that came last
        self._front = 0  # of the one that was put in front last
        self._passed = 0, 0  # from and up to which turn others went before

    def __repr__(self) -> str:
        num_blocked = len(self) - self.num_ready
        return f"<BlockQueue [Blocks: {len(self)}, {num_blocked} blocked]>"

    def __len__(self) -> int:
        return self._num_blocks

    def __contains__(self, block: int) -> bool:
        return block in self._turns.tables[hash(block) & LAST]

    @property
    def num_ready(self) -> int:
        """Blocks that may go."""
        return len(self._order) + len(self._again)

    def push(self, block: int) -> None:
        """Add *block* at the end."""
        self._turn += 1
        self._turns.tables[hash(block) & LAST][block] = self._turn
        self._num_blocks += 1
        self._order.push(block)

    def block(self, block: int) -> None:
        """Keep *block* from going."""
        if not self._order.discard(block):
            self._again.discard(block)

    def unblock(self, block: int) -> None:
        """Let *block* go when its turn comes."""
        turns = self._turns.of(block)
        begin, end = self._passed
        if begin <= turns[block] < end:
            self._front -= 1
            turns[block] = self._front
        self._again.put(block, (0.0, turns[block]))

    def pop(self) -> int:
        """Take out the first that may go; there is at least one."""
        block = self._again.pop()[0] if self._is_again_first() else self._order.pop()
        turn = self._turns.tables[hash(block) & LAST].pop(block)
        self._num_blocks -= 1
        if turn > 0:
            # Of those in front of it only blocked ones are left.
            self._passed = self._front, turn
        return block

    def discard(self, block: int) -> None:
        """Take *block* out, if it is in."""
        if self._turns.of(block).pop(block, None) is not None:
            self._num_blocks -= 1
            self.block(block)

    def ready(self) -> Iterable[int]:
        """Yield the blocks that may go, first in first. O(n log n)."""
        return sorted(
            [*self._order, *self._again.ordered()],
            key=lambda block: self._turns.of(block)[block],
        )

    def _is_again_first(self) -> bool:
        if not self._again or not self._order:
            return bool(self._again)
        _, (_, turn) = self._again.first()
        first = self._order.first()
        return turn < self._turns.of(first)[first]
