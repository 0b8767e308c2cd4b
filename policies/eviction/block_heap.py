"""Blocks in the order of a key that may change at any time."""

from heapq import heapify, heappop, heappush, heapreplace

_SLACK = 64

Key = tuple[float, int]
"""Score, then what decides between equal scores; the least goes first."""


class BlockHeap:
    """A priority queue of blocks, least key first.

    A raised key costs nothing at once: the entry is found to be stale, and is
    renewed, only when it comes to the front. O(log n) amortised an operation, and
    never more than twice as many entries as blocks.
    """

    __slots__ = ("_entries", "_keys")

    def __init__(self) -> None:
        self._keys: dict[int, Key] = {}
        self._entries: list[tuple[Key, int]] = []

    def __repr__(self) -> str:
        return f"<BlockHeap [Blocks: {len(self._keys)}]>"

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, block: int) -> bool:
        return block in self._keys

    def put(self, block: int, key: Key) -> None:
        """Add *block*, or give it another key."""
        known = self._keys.get(block)
        self._keys[block] = key
        if known is None or key < known:
            self._push(block, key)

    def discard(self, block: int) -> None:
        """Take *block* out, if it is in."""
        self._keys.pop(block, None)

    def move(self, block: int, other: "BlockHeap") -> None:
        """Take *block* out, if it is in, and put it into *other*."""
        key = self._keys.pop(block, None)
        if key is not None:
            other.put(block, key)

    def pop(self) -> tuple[int, Key]:
        """Take the block with the least key out; there is at least one."""
        while True:
            written, block = self._entries[0]
            key = self._keys.get(block)
            if key == written:
                heappop(self._entries)
                del self._keys[block]
                return block, written
            if key is None:
                heappop(self._entries)
            else:
                heapreplace(self._entries, (key, block))

    def ordered(self) -> list[int]:
        """List the blocks, least key first. O(n log n)."""
        return sorted(self._keys, key=lambda block: (self._keys[block], block))

    def _push(self, block: int, key: Key) -> None:
        if len(self._entries) > 2 * len(self._keys) + _SLACK:
            self._entries = [(one, block) for block, one in self._keys.items()]
            heapify(self._entries)
        else:
            heappush(self._entries, (key, block))
