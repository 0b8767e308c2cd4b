"""A table of many blocks that never grows in one piece."""

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

LAST = 63
"""Number of the last shard; one less than a power of two."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Shards(Generic[Key, Value]):
    """Spread a table over small ones, because a dict moves all that it has to grow.

    With half a million blocks one dict takes milliseconds for that, a shard much less.
    Only what a caller needs of a table is here.

    Attributes:
        tables: The shards; that of a key has the number ``hash(key) & LAST``. Where
            each block of a prompt comes by, this is written out instead of `of`.
    """

    __slots__ = ("tables",)

    def __init__(self) -> None:
        self.tables: list[dict[Key, Value]] = [{} for _ in range(LAST + 1)]

    def __repr__(self) -> str:
        return f"<Shards [Keys: {len(self)}]>"

    def __len__(self) -> int:
        return sum(map(len, self.tables))

    def __contains__(self, key: Key) -> bool:
        return key in self.tables[hash(key) & LAST]

    def __iter__(self) -> Iterator[dict[Key, Value]]:
        """Return the shards, to go through them one by one."""
        return iter(self.tables)

    def of(self, key: Key) -> dict[Key, Value]:
        """Return the shard of a key, to look there or to change it."""
        return self.tables[hash(key) & LAST]
