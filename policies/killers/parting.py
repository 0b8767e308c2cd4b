"""Where a prompt leaves what was met before, and the shared text behind that point."""

from collections.abc import Callable, Mapping
from typing import Final

from warmroute.policies.killers.chunks import Chunks
from warmroute.policies.killers.kinds import Kind, classify, classify_order
from warmroute.policies.killers.masks import mask

MIN_CHUNK_BYTES: Final = 16
"""Shorter chunks are in so many texts that they name none."""

_BEFORE_BYTES: Final = 48
_WITHIN_BYTES: Final = 144
_BEHIND_BYTES: Final = 48


class Parting:
    """Look at a prompt behind its known chunks.

    Args:
        chunks: Of the prompt.
        sizes: Bytes of each different chunk.
        num_seen: Leading chunks that were met before; not all of them.
        count: Tells in how many prompts a chunk was.
        least: What so many prompts have is shared text.

    Attributes:
        site: Names the known chunks; 0 where there are none.
        start: Offset at which the prompt leaves them.
    """

    __slots__ = (
        *("_chunks", "_count", "_least", "_lost", "_num_seen", "_sizes"),
        *("site", "start"),
    )

    def __init__(
        self,
        chunks: Chunks,
        sizes: Mapping[int, int],
        num_seen: int,
        count: Callable[[int], int],
        least: float,
    ) -> None:
        self._chunks, self._sizes, self._num_seen = chunks, sizes, num_seen
        self._count, self._least = count, least
        self.site = chunks.chains[num_seen - 1] if num_seen else 0
        self.start = chunks.start(num_seen)
        self._lost = self._find_lost()

    def __repr__(self) -> str:
        return f"<Parting at {self.start}: {len(self._lost)} chunks lost>"

    def lost_bytes(self) -> int:
        """Count the bytes that are computed again, although many share them."""
        sizes, lost = self._sizes, self._lost
        behind = self._chunks.hashes[self._num_seen :]
        return sum(sizes[one] for one in behind if one in lost)

    def rejoins(self) -> tuple[int, int]:
        """Return the first lost chunk, and the offset at which what differs ends."""
        chunks, num_seen = self._chunks, self._num_seen
        hashes = chunks.hashes
        at = next(i for i in range(num_seen, len(hashes)) if hashes[i] in self._lost)
        return hashes[at], chunks.start(at) if at > num_seen else chunks.ends[at]

    def kind(self, end: int) -> Kind | None:
        """Return what differs; None where nothing does that a client could mend.

        Args:
            end: Offset at which it ends.
        """
        count, hashes = self._count, self._chunks.hashes
        text, num_seen = self._chunks.text, self._num_seen
        if count(hashes[num_seen]) < self._least:
            return classify(text, self.start, end)
        # Shared text in its usual place was forgotten here; in another one, what
        # stands before it must be shared, too: retrieved documents are not.
        before = (one for one in reversed(hashes[:num_seen]) if self._is_long(one))
        if not num_seen or count(next(before, hashes[0])) < self._least:
            return None
        return classify_order(text, self.start)

    def example(self, end: int) -> str:
        """Return what differs with a little around it, masked.

        Args:
            end: Offset at which it ends.
        """
        text, start = self._chunks.text, self.start
        before = mask(text[max(0, start - _BEFORE_BYTES) : start])
        within = mask(text[start : min(end, start + _WITHIN_BYTES)])
        cut = "..." if end - start > _WITHIN_BYTES else ""
        behind = mask(text[end : end + _BEHIND_BYTES])
        return f"{before}»{within}{cut}«{behind}"

    def _find_lost(self) -> set[int]:
        """Return the shared text that stands only behind the known chunks."""
        count, least, hashes = self._count, self._least, self._chunks.hashes
        known, behind = hashes[: self._num_seen], hashes[self._num_seen :]
        new = set(behind).difference(known)
        return {one for one in new if self._is_long(one) and count(one) >= least}

    def _is_long(self, one: int) -> bool:
        return self._sizes[one] >= MIN_CHUNK_BYTES
