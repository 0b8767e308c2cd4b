"""One of those who compute a step together, and what is theirs of it."""

from collections.abc import Callable
from dataclasses import dataclass

from warmroute.adapters.embedded.model.arrays import F32

_PIECE = 32
"""Columns that stay together: whole lines of a processor's cache."""


@dataclass(frozen=True, slots=True)
class Member:
    """Tell a member what is its own, and give it what all of them share.

    Args:
        take: Returns the array of a name and a shape that all members see.
        meet: Returns once all members have called it as often.
        rank: Its number, from 0.
        size: How many members there are.
    """

    take: Callable[..., F32]
    meet: Callable[[], object] = bool
    rank: int = 0
    size: int = 1

    def columns(self, width: int) -> slice:
        """Return which of *width* columns of a weight are this member's."""
        pieces = -(-width // _PIECE)
        first, last = (pieces * at // self.size for at in (self.rank, self.rank + 1))
        return slice(first * _PIECE, min(last * _PIECE, width))

    def rows(self, count: int) -> slice:
        """Return which of *count* rows that cost the same are this member's."""
        first, last = (count * at // self.size for at in (self.rank, self.rank + 1))
        return slice(first, last)
