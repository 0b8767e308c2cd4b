"""A first-in first-out queue in which some blocks wait without losing their place."""

from collections import OrderedDict
from collections.abc import Iterable


class BlockQueue:
    """Blocks in the order in which they came, with some that may not go yet.

    A blocked one keeps its place: it is set aside when it comes to the front, and is
    at the front again once it is unblocked. All operations are O(1) amortised.
    """

    __slots__ = ("_aside", "_blocked", "_queue")

    def __init__(self) -> None:
        self._queue: OrderedDict[int, None] = OrderedDict()
        self._blocked: set[int] = set()
        self._aside: set[int] = set()

    def __repr__(self) -> str:
        return f"<BlockQueue [Blocks: {len(self)}, {len(self._blocked)} blocked]>"

    def __len__(self) -> int:
        return len(self._queue) + len(self._aside)

    def __contains__(self, block: int) -> bool:
        return block in self._queue or block in self._aside

    @property
    def num_ready(self) -> int:
        """Blocks that may go."""
        return len(self) - len(self._blocked)

    def push(self, block: int) -> None:
        """Add *block* at the end."""
        self._queue[block] = None

    def block(self, block: int) -> None:
        """Keep *block* from going."""
        self._blocked.add(block)

    def unblock(self, block: int) -> None:
        """Let *block* go when its turn comes."""
        self._blocked.remove(block)
        if block in self._aside:
            self._aside.remove(block)
            self._queue[block] = None
            self._queue.move_to_end(block, last=False)

    def pop(self) -> int:
        """Take out the first that may go; there is at least one."""
        while True:
            block, _ = self._queue.popitem(last=False)
            if block not in self._blocked:
                return block
            self._aside.add(block)

    def discard(self, block: int) -> None:
        """Take *block* out, if it is in."""
        self._queue.pop(block, None)
        self._aside.discard(block)
        self._blocked.discard(block)

    def ready(self) -> Iterable[int]:
        """Yield the blocks that may go, first in first."""
        return (block for block in self._queue if block not in self._blocked)
