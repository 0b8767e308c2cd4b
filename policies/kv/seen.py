"""Which blocks the fleet was ever sent: tells a cold miss from an evicted block."""

from array import array
from collections.abc import Sequence
from typing import Final

# Probing a few blocks onward bridges overwritten ones: a later block of a chain was
# sent only together with all blocks in front of it.
_PROBES: Final = 4


class SeenBlocks:
    """Remember every block hash that was ever sent, approximately, in fixed memory.

    A direct-mapped table of whole hashes. A block that was never sent is never
    reported as seen. A block that was sent may be forgotten: each new block
    overwrites the slot that its low bits name, so after *n* further blocks in a table
    of *s* slots a block is still known with probability ``exp(-n / s)``. The table is
    allocated with the first block: 8 bytes a slot, 8 MiB by default.

    Args:
        num_slots: Size of the table; rounded up to a power of two, at least 2.
    """

    __slots__ = ("_mask", "_table")

    def __init__(self, num_slots: int = 2**20) -> None:
        self._mask = (1 << max(1, num_slots - 1).bit_length()) - 1
        self._table: array[int] = array("Q")

    def __repr__(self) -> str:
        return f"<SeenBlocks [Slots: {self.num_slots}, {self.num_bytes} bytes]>"

    @property
    def num_slots(self) -> int:
        """Number of blocks that the table can remember at most."""
        return self._mask + 1

    @property
    def num_bytes(self) -> int:
        """Bytes allocated for the table now."""
        return len(self._table) * self._table.itemsize

    def prefix_seen(self, hashes: Sequence[int], known: int = 0) -> int:
        """Count the leading blocks of a chain that were sent before.

        O(log n): presence along a chain is monotone, save for overwritten blocks, so
        the end is found by doubling and bisecting. Overwriting can make the count too
        low by any amount, never too high.

        Args:
            hashes: The chain.
            known: Leading blocks that are known to have been sent.
        """
        num_blocks = len(hashes)
        if not self._table or known == num_blocks or not self._seen(hashes, known):
            return known
        low, step = known, 1
        while (high := low + step) < num_blocks and self._seen(hashes, high):
            low, step = high, step * 2
        high = min(high, num_blocks)
        while high - low > 1:
            middle = (low + high) // 2
            if self._seen(hashes, middle):
                low = middle
            else:
                high = middle
        return low + 1

    def add(self, hashes: Sequence[int], start: int = 0) -> None:
        """Remember the blocks of a chain from *start* on; about 50 ns a block."""
        table = self._table or self._allocate()
        mask = self._mask
        for block in hashes[start:] if start else hashes:
            table[block & mask] = block

    def observe(self, hashes: Sequence[int], known: int = 0) -> int:
        """Count the leading blocks sent before, then remember those behind them.

        Args:
            hashes: The chain.
            known: Leading blocks that are known to have been sent.
        """
        num_blocks = len(hashes)
        if known == num_blocks:
            return known
        if num_blocks - known > _PROBES:
            num_seen = self.prefix_seen(hashes, known)
            if num_seen < num_blocks:
                self.add(hashes, num_seen)
            return num_seen
        # The usual short rest is looked at from its end, in place.
        table, mask = self._table or self._allocate(), self._mask
        num_seen = num_blocks
        while num_seen > known:
            block = hashes[num_seen - 1]
            if table[block & mask] == block:
                break
            num_seen -= 1
        for block in hashes[num_seen:]:
            table[block & mask] = block
        return num_seen

    def _allocate(self) -> "array[int]":
        self._table = array("Q", bytes(8 * self.num_slots))
        # An empty slot must not look like block 0; one that belongs elsewhere cannot.
        self._table[0] = self._mask
        return self._table

    def _seen(self, hashes: Sequence[int], position: int) -> bool:
        table, mask = self._table, self._mask
        block = hashes[position]
        if table[block & mask] == block:
            return True
        for block in hashes[position + 1 : position + _PROBES]:
            if table[block & mask] == block:
                return True
        return False
