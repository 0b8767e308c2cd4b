"""Until when each of many blocks is kept, and which is due next."""

from collections.abc import Iterator

from warmroute.policies.kv.block_heap import BlockHeap


class Deadlines:
    """Keep one deadline a block, in O(log n) a call, of which none takes long."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        # What is due together goes tail first.
        self._heap = BlockHeap()

    def __repr__(self) -> str:
        return f"<Deadlines [Blocks: {len(self)}]>"

    def __len__(self) -> int:
        return len(self._heap)

    def __contains__(self, block: int) -> bool:
        return block in self._heap

    @property
    def num_entries(self) -> int:
        """Entries of the heap, those that count no more included."""
        return self._heap.num_entries

    @property
    def next_due(self) -> float | None:
        """When something is due; None while there is nothing."""
        return self._heap.first()[1][0] if self._heap else None

    def get(self, block: int) -> float | None:
        """Return until when a block is kept, if it is."""
        key = self._heap.get(block)
        return None if key is None else key[0]

    def put(self, block: int, deadline: float, depth: int) -> None:
        """Keep a block until a time, instead of what was said before."""
        self._heap.put(block, (deadline, -depth))

    def pop(self, block: int) -> float | None:
        """Keep a block no longer; return until when it would have been kept."""
        key = self._heap.discard(block)
        return None if key is None else key[0]

    def due(self, now: float, at_most: int | None = None) -> Iterator[int]:
        """Take away the blocks that are due, one by one; O(1) if none is.

        Args:
            now: Time.
            at_most: Most blocks; the others are left for the next call.
        """
        num_due = 0
        while self._heap and num_due != at_most:
            if self._heap.first()[1][0] > now:
                return
            num_due += 1
            yield self._heap.pop()[0]

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block has its entry. O(n)."""
        self._heap.check_integrity()
