"""A segment: a run of tokens in a token-granular radix tree, and where it lies."""

from array import array
from collections.abc import Iterator
from typing import Optional


class Segment:
    """Tokens that always follow each other, with the pages that hold them.

    Its first page may begin with tokens of the segments in front, and is whole for
    them too: whoever reads this segment needs none of their pages for that block.

    Args:
        parent: The segment in front; None for the root.
        start: Tokens in front.
        tokens: Token ids; empty for the root only.
        pages: From the block that holds token *start* on; one reference each.
    """

    __slots__ = (
        "children",
        "is_queued",
        "last_used",
        "locks",
        "pages",
        "parent",
        "start",
        "tokens",
    )

    def __init__(
        self,
        parent: Optional["Segment"],
        start: int,
        tokens: "array[int]",
        pages: list[int],
    ) -> None:
        self.parent = parent
        self.start = start
        self.tokens = tokens
        self.pages = pages
        self.children: dict[int, Segment] = {}
        self.last_used = 0
        self.locks = 0
        self.is_queued = False

    def __repr__(self) -> str:
        return f"<Segment [Tokens: {self.start} to {self.end}, pages: {self.pages}]>"

    @property
    def end(self) -> int:
        """Tokens up to the end of this segment."""
        return self.start + len(self.tokens)

    def num_common(self, tokens: "array[int]") -> int:
        """Count the leading tokens here that *tokens* has from `start` on. O(n)."""
        # Slices compare in C, and each half is compared once.
        low, high = 0, min(len(self.tokens), len(tokens) - self.start)
        while low < high:
            middle = (low + high + 1) // 2
            there = tokens[self.start + low : self.start + middle]
            if self.tokens[low:middle] == there:
                low = middle
            else:
                high = middle - 1
        return low

    def upwards(self) -> Iterator["Segment"]:
        """Yield this segment and those in front of it, without the root."""
        segment = self
        while segment.parent is not None:
            yield segment
            segment = segment.parent

    def walk(self) -> Iterator["Segment"]:
        """Yield this segment and all behind it."""
        pending = [self]
        while pending:
            segment = pending.pop()
            yield segment
            pending += segment.children.values()
