"""What is remembered of blocks that are gone: a bounded number of them."""

from typing import Generic, TypeVar

from warmroute.policies.eviction.block_order import block_order
from warmroute.policies.kv.shards import LAST, Shards

T = TypeVar("T")


class Ghosts(Generic[T]):
    """A value for each of the blocks that went last; older ones are forgotten. O(1).

    Args:
        limit: Blocks to remember; none when 0.
    """

    __slots__ = ("_order", "_values", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._values: Shards[int, T] = Shards()
        self._order = block_order(limit)

    def __repr__(self) -> str:
        return f"<Ghosts [Blocks: {len(self)} of {self.limit}]>"

    def __len__(self) -> int:
        return len(self._order)

    def remember(self, block: int, value: T) -> None:
        """Keep *value* for *block*, which is the newest ghost now."""
        values = self._values.tables[hash(block) & LAST]
        if block in values:
            self._order.renew(block)
        else:
            self._order.push(block)
        values[block] = value
        self.trim(self.limit)

    def recall(self, block: int) -> T | None:
        """Return the value of *block* and forget it; None when it is no ghost."""
        values = self._values.tables[hash(block) & LAST]
        if block not in values:
            return None
        self._order.discard(block)
        return values.pop(block)

    def peek(self, block: int) -> T | None:
        """Return the value of *block*; None when it is no ghost."""
        return self._values.tables[hash(block) & LAST].get(block)

    def trim(self, limit: int) -> None:
        """Forget the oldest down to *limit*."""
        while len(self._order) > limit:
            block = self._order.pop()
            del self._values.tables[hash(block) & LAST][block]

    def forget(self, count: int) -> bool:
        """Forget the oldest *count*; tell whether others are left."""
        self.trim(max(0, len(self) - count))
        return len(self) > 0
