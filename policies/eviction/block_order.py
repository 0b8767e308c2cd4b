"""Blocks in an order that changes at its ends."""

from collections import OrderedDict
from collections.abc import Iterator
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Final, Protocol

from warmroute.policies.kv.shards import LAST, Shards

_FEW: Final = 8_192
_MANY: Final = 1 << 22
"""Most blocks that there is room for from the beginning."""

_RING: Final = 0
"""The place that holds no block: behind the last one, in front of the first."""


class BlockOrder(Protocol):
    """A queue of blocks that any of them may leave. O(1) a call."""

    def __len__(self) -> int: ...

    def __contains__(self, block: int) -> bool: ...

    def __iter__(self) -> Iterator[int]:
        """Yield the blocks, the first one first; nothing may change meanwhile."""
        ...

    def push(self, block: int) -> None:
        """Put *block*, which is not in, at the end."""
        ...

    def renew(self, block: int) -> bool:
        """Put *block* at the end, if it is in; tell whether it is."""
        ...

    def discard(self, block: int) -> bool:
        """Take *block* out, if it is in; tell whether it was."""
        ...

    def first(self) -> int:
        """Return the first block; there is at least one."""
        ...

    def pop(self) -> int:
        """Take the first block out; there is at least one."""
        ...

    def pop_last(self) -> int:
        """Take the last block out; there is at least one."""
        ...


def block_order(most: int) -> BlockOrder:
    """Return an empty order for at most so many blocks.

    An `OrderedDict` is the fastest, but moves all that it has to grow, and the garbage
    collector goes through all of it: with many blocks, both take long.
    """
    # One may come before another goes.
    return _FewBlocks() if most <= _FEW else _ManyBlocks(min(most, _MANY) + 1)


class _FewBlocks:
    """Blocks in an `OrderedDict`."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block: int) -> bool:
        return block in self._blocks

    def __iter__(self) -> Iterator[int]:
        return iter(self._blocks)

    def push(self, block: int) -> None:
        self._blocks[block] = None

    def renew(self, block: int) -> bool:
        if block not in self._blocks:
            return False
        self._blocks.move_to_end(block)
        return True

    def discard(self, block: int) -> bool:
        if block not in self._blocks:
            return False
        del self._blocks[block]
        return True

    def first(self) -> int:
        return next(iter(self._blocks))

    def pop(self) -> int:
        return self._blocks.popitem(last=False)[0]

    def pop_last(self) -> int:
        return self._blocks.popitem()[0]


class _ManyBlocks:
    """Blocks in places that name the places before and after them.

    An array of a million places is copied when it grows, which takes many milliseconds
    where the allocator moves it. So there is room for all from the beginning, and the
    system gives it memory where it is written.

    Args:
        most: Blocks that there is room for; all is copied if there are more.
    """

    __slots__ = (
        "_after", "_before", "_blocks", "_num_blocks", "_num_made", "_places", "_spare",
    )  # fmt: skip

    def __init__(self, most: int) -> None:
        self._places: Shards[int, int] = Shards()  # of each block
        self._blocks = _zeros(most + 1)
        self._after = _zeros(most + 1)
        self._before = _zeros(most + 1)
        self._num_made = 1  # places that were ever taken, the ring's own included
        self._spare = _RING  # places to be taken again, each names the next
        self._num_blocks = 0

    def __len__(self) -> int:
        return self._num_blocks

    def __contains__(self, block: int) -> bool:
        return block in self._places.tables[hash(block) & LAST]

    def __iter__(self) -> Iterator[int]:
        place = self._after[_RING]
        while place:
            yield self._blocks[place]
            place = self._after[place]

    def push(self, block: int) -> None:
        place = self._spare
        if place:
            self._spare = self._after[place]
        else:
            place = self._num_made
            self._num_made += 1
            if place == len(self._blocks):
                self._grow()
        before, after = self._before, self._after
        self._blocks[place] = block
        last = before[_RING]
        before[place] = last
        after[place] = _RING
        before[_RING] = after[last] = place
        self._places.tables[hash(block) & LAST][block] = place
        self._num_blocks += 1

    def renew(self, block: int) -> bool:
        is_in = self.discard(block)
        if is_in:
            self.push(block)
        return is_in

    def discard(self, block: int) -> bool:
        place = self._places.tables[hash(block) & LAST].pop(block, None)
        if place is None:
            return False
        before, after = self._before, self._after
        front, back = before[place], after[place]
        after[front], before[back] = back, front
        after[place] = self._spare
        self._spare = place
        self._num_blocks -= 1
        return True

    def first(self) -> int:
        return self._blocks[self._after[_RING]]

    def pop(self) -> int:
        block = self.first()
        self.discard(block)
        return block

    def pop_last(self) -> int:
        block = self._blocks[self._before[_RING]]
        self.discard(block)
        return block

    def _grow(self) -> None:
        """Make room for twice as many."""
        self._blocks = _twice(self._blocks)
        self._after = _twice(self._after)
        self._before = _twice(self._before)


def _zeros(count: int) -> "memoryview[int]":
    """Return so many numbers of 8 bytes, which take no memory until they are set."""
    flags = MAP_PRIVATE | MAP_ANONYMOUS
    return memoryview(mmap(-1, 8 * count, flags)).cast("Q")


def _twice(numbers: "memoryview[int]") -> "memoryview[int]":
    """Return a copy with as many zeros behind."""
    longer = _zeros(2 * len(numbers))
    longer[: len(numbers)] = numbers
    return longer
