"""Blocks in the order of a key, those with cached children after all others."""

from warmroute.policies.kv.block_heap import BlockHeap, Key
from warmroute.policies.kv.shards import Shards


class LeafHeap:
    """A priority queue of blocks that gives up no parent before its children.

    For scores that may rank a block above the one in front of it: taking the latter
    first would strand the former. Parents go only when nothing else is in the queue.
    O(log n) an operation.
    """

    __slots__ = ("_inner", "_leaves", "_num_children")

    def __init__(self) -> None:
        self._leaves = BlockHeap()
        self._inner = BlockHeap()
        self._num_children: Shards[int, int] = Shards()

    def __repr__(self) -> str:
        return f"<LeafHeap [Leaves: {len(self._leaves)}, inner: {len(self._inner)}]>"

    def __contains__(self, block: int) -> bool:
        return block in self._leaves or block in self._inner

    def put(self, block: int, key: Key) -> None:
        """Add *block*, or give it another key."""
        is_inner = block in self._num_children
        (self._inner if is_inner else self._leaves).put(block, key)

    def discard(self, block: int) -> None:
        """Take *block* out, if it is in."""
        self._leaves.discard(block)
        self._inner.discard(block)

    def pop(self) -> tuple[int, Key]:
        """Take out the least leaf, or the least of all where none is a leaf."""
        return (self._leaves or self._inner).pop()

    def ordered(self) -> list[int]:
        """List the blocks, leaves before the others. O(n log n)."""
        return self._leaves.ordered() + self._inner.ordered()

    def add_child(self, parent: int) -> None:
        """Take note that a child of *parent* is cached now."""
        counts = self._num_children.of(parent)
        count = counts.get(parent, 0)
        counts[parent] = count + 1
        if not count:
            self._leaves.move(parent, self._inner)

    def drop_child(self, parent: int) -> None:
        """Take note that a child of *parent* is gone."""
        counts = self._num_children.of(parent)
        count = counts[parent] - 1
        if count:
            counts[parent] = count
        else:
            del counts[parent]
            self._inner.move(parent, self._leaves)
