"""What is remembered of blocks that are gone: a bounded number of them."""

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class Ghosts(Generic[T]):
    """A value for each of the blocks that went last; older ones are forgotten. O(1).

    Args:
        limit: Blocks to remember; none when 0.
    """

    __slots__ = ("_values", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._values: OrderedDict[int, T] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Ghosts [Blocks: {len(self)} of {self.limit}]>"

    def __len__(self) -> int:
        return len(self._values)

    def remember(self, block: int, value: T) -> None:
        """Keep *value* for *block*, which is the newest ghost now."""
        self._values[block] = value
        self._values.move_to_end(block)
        self.trim(self.limit)

    def recall(self, block: int) -> T | None:
        """Return the value of *block* and forget it; None when it is no ghost."""
        return self._values.pop(block, None)

    def peek(self, block: int) -> T | None:
        """Return the value of *block*; None when it is no ghost."""
        return self._values.get(block)

    def trim(self, limit: int) -> None:
        """Forget the oldest down to *limit*."""
        while len(self._values) > limit:
            self._values.popitem(last=False)
