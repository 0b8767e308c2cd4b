"""A table of many blocks that never grows in one piece, nor is freed in one."""

from array import array
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

import msgspec

LAST = 255
"""Number of the last shard; one less than a power of two."""

_FREED_AT_ONCE = 32_768

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Shards(Generic[Key, Value]):
    """Spread a table over small ones, because a dict moves all that it has to grow.

    With half a million blocks one dict takes milliseconds for that, a shard a
    tenth of one. It must be so little because tables of the same keys have shards
    of the same keys, which all grow at the same key: `Adaptive` has twenty of them.
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


def dismantle(root: object) -> Iterator[None]:
    """Free what an object that nobody needs any more has, a table at a time.

    Of an object it takes apart what is in the slots of classes of these policies, its
    own or those that it derives from; others go at once. Nothing of it is of any use
    from the first step on.
    """
    waiting, policies = [root], __name__.removesuffix("kv.shards")
    while waiting:
        one = waiting.pop()
        if isinstance(one, Shards):
            while one.tables:
                one.tables.pop()
                yield
        elif isinstance(one, array):
            while one:
                del one[-_FREED_AT_ONCE:]
                yield
        elif isinstance(one, memoryview):
            one.release()
            yield
        elif isinstance(one, list | dict):
            waiting += one.values() if isinstance(one, dict) else one
            one.clear()
            yield
        elif not isinstance(one, msgspec.Struct):  # those have no tables
            for base in type(one).__mro__:
                if base.__module__.startswith(policies):
                    slots = getattr(base, "__slots__", ())
                    waiting += [getattr(one, slot, None) for slot in slots]
