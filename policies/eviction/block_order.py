"""Blocks in an order that changes at its ends."""

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Protocol

from warmroute.policies.kv.shards import LAST, Shards

_FEW: Final = 8_192
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
    return _FewBlocks() if most <= _FEW else _ManyBlocks()


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
    """Blocks in places that name the places before and after them, all in arrays."""

    __slots__ = ("_after", "_before", "_blocks", "_num_blocks", "_places", "_spare")

    def __init__(self) -> None:
        self._places: Shards[int, int] = Shards()  # of each block
        self._blocks = array("Q", [0])
        self._after = array("q", [_RING])
        self._before = array("q", [_RING])
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
        before, after, place = self._before, self._after, self._spare
        if place:
            self._spare = after[place]
            self._blocks[place] = block
        else:
            place = len(after)
            self._blocks.append(block)
            after.append(_RING)
            before.append(_RING)
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
