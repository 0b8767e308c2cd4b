"""A table of many blocks that never grows in one piece."""

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

_NUM = 256  # a power of two

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Shards(Generic[Key, Value]):
    """Spread a table over small ones, because a dict moves all that it has to grow.

    With half a million blocks one dict takes 5 to 30 ms for that, a shard a few
    hundredths of one. Only what a caller needs of a table is here.
    """

    __slots__ = ("_shards",)

    def __init__(self) -> None:
        self._shards: list[dict[Key, Value]] = [{} for _ in range(_NUM)]

    def __repr__(self) -> str:
        return f"<Shards [Keys: {len(self)}]>"

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def __contains__(self, key: Key) -> bool:
        return key in self._shards[hash(key) & (_NUM - 1)]

    def __iter__(self) -> Iterator[dict[Key, Value]]:
        """Return the shards, to go through them one by one."""
        return iter(self._shards)

    def of(self, key: Key) -> dict[Key, Value]:
        """Return the shard of a key, to look there or to change it."""
        return self._shards[hash(key) & (_NUM - 1)]
