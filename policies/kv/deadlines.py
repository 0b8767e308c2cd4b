"""Until when each of many blocks is kept, and which is due next."""

from collections.abc import Iterator
from heapq import heappop, heappush

from warmroute.policies.kv.shards import Shards

_SLACK = 64
_SIFTED = 4

Entry = tuple[float, int, int]
"""Deadline, depth from the end, and block: what is due together goes tail first."""


class Deadlines:
    """Keep one deadline a block, in O(log n) a call.

    A deadline that is changed or taken away leaves a stale entry in the heap. When
    those are more than the others, the heap is put aside, and every further call sifts
    some of its entries, from its end, which leaves it a heap. So no call takes long,
    and there are never more entries than thrice the blocks, and a few.
    """

    __slots__ = ("_aside", "_by_block", "_heap", "_num_blocks")

    def __init__(self) -> None:
        self._num_blocks = 0
        self._by_block: Shards[int, float] = Shards()
        self._heap: list[Entry] = []
        self._aside: list[Entry] = []

    def __repr__(self) -> str:
        return f"<Deadlines [Blocks: {len(self)}, entries: {self.num_entries}]>"

    def __len__(self) -> int:
        return self._num_blocks

    def __contains__(self, block: int) -> bool:
        return block in self._by_block

    @property
    def num_entries(self) -> int:
        """Entries of the heaps, stale ones included."""
        return len(self._heap) + len(self._aside)

    @property
    def next_due(self) -> float | None:
        """When something may be due, at the earliest; None while there is nothing."""
        if not self._num_blocks:
            return None
        return self._first()[0][0]

    def get(self, block: int) -> float | None:
        """Return until when a block is kept, if it is."""
        return self._by_block.of(block).get(block)

    def put(self, block: int, deadline: float, depth: int) -> None:
        """Keep a block until a time, instead of what was said before."""
        shard = self._by_block.of(block)
        self._num_blocks += block not in shard
        shard[block] = deadline
        heappush(self._heap, (deadline, -depth, block))
        self._sift()

    def pop(self, block: int) -> float | None:
        """Keep a block no longer; return until when it would have been kept."""
        deadline = self._by_block.of(block).pop(block, None)
        if deadline is not None:
            self._num_blocks -= 1
            self._sift()
        return deadline

    def due(self, now: float, at_most: int | None = None) -> Iterator[int]:
        """Take away the blocks that are due, one by one; O(1) if none is.

        Args:
            now: Time.
            at_most: Most entries that are looked at, stale ones included; the others
                are left for the next call.
        """
        num_seen = 0
        while self.num_entries and num_seen != at_most:
            heap = self._first()
            if heap[0][0] > now:
                return
            entry, num_seen = heappop(heap), num_seen + 1
            if self._is_live(entry):
                del self._by_block.of(entry[2])[entry[2]]
                self._num_blocks -= 1
                yield entry[2]

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block has an entry. O(n)."""
        entries = {(block, due) for due, _, block in (*self._heap, *self._aside)}
        assert self._num_blocks == len(self._by_block), "blocks are miscounted"
        for shard in self._by_block:
            assert shard.items() <= entries, "a block never expires"

    def _first(self) -> list[Entry]:
        """Return the heap whose first entry is due first."""
        if not self._aside:
            return self._heap
        if not self._heap:
            return self._aside
        return min(self._heap, self._aside, key=lambda heap: heap[0])

    def _is_live(self, entry: Entry) -> bool:
        return self._by_block.of(entry[2]).get(entry[2]) == entry[0]

    def _sift(self) -> None:
        if not self._aside:
            if len(self._heap) <= 2 * self._num_blocks + _SLACK:
                return
            self._aside, self._heap = self._heap, self._aside
        for _ in range(min(_SIFTED, len(self._aside))):
            entry = self._aside.pop()
            if self._is_live(entry):
                heappush(self._heap, entry)
