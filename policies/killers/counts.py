"""How many requests had a chunk, for the chunks that come again."""

from collections.abc import Iterable


class ChunkCounts:
    """Count chunks in bounded memory.

    Full, all counts are halved and what is left at zero goes: text of one request
    goes first, and the proportions among the rest stay.

    Args:
        max_chunks: Chunks that are counted at most.
    """

    __slots__ = ("_counts", "_max_chunks")

    def __init__(self, max_chunks: int) -> None:
        self._max_chunks = max_chunks
        self._counts: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<ChunkCounts {len(self._counts)} of {self._max_chunks}>"

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, hashes: Iterable[int]) -> None:
        """Count each of *hashes* once more; amortised O(1) each."""
        counts = self._counts
        for one in hashes:
            counts[one] = counts.get(one, 0) + 1
        while len(counts) > self._max_chunks:
            counts = {one: num // 2 for one, num in counts.items() if num > 1}
        self._counts = counts

    def get(self, one: int) -> int:
        """Return how often *one* was counted, about."""
        return self._counts.get(one, 0)
