"""Where announced blocks are, by the keys that an engine gave them."""

import sys
from array import array
from sys import getsizeof
from typing import Final

from warmroute.policies.kv.run import Run

_NUM_SHARDS: Final = 64
_LAST: Final = _NUM_SHARDS - 1
_KEY_BYTES: Final = 8
_SHIFT: Final = 58
_LOW: Final = (1 << _SHIFT) - 1
_HIGH_BYTE: Final = _KEY_BYTES - 1 if sys.byteorder == "little" else 0
_SHARD_OF: Final = bytes(high >> 2 for high in range(256))
_LOW_OF: Final = bytes(high & 3 for high in range(256))
_MAX_ENTRY_BYTES: Final = 64
_SLACK_BYTES: Final = 4096
_NONE: Final[list[dict[int, object]]] = [{}] * _NUM_SHARDS


class Known:
    """The run of each announced block of one holder, by the engine's own key.

    Many small dicts: one that grows is copied as a whole, and of millions of keys
    that would hold up everybody for a tenth of a second. The first six bits of a key
    say which, and the others are the key there: a number of 58 bits takes a third less
    memory than one of 64.

    A key leads to the mark of its run, and only that to the run. To Python's garbage
    collector a dict of mere marks is no container; it would walk through one of runs,
    and hold everybody up for 60 ns a block.
    """

    __slots__ = ("_at", "_runs", "_shards")

    def __init__(self) -> None:
        self._shards = _NONE  # of the many who announce nothing
        self._at = 0
        self._runs: dict[object, Run] = {}

    def __repr__(self) -> str:
        return f"<Known [Keys: {len(self)}]>"

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing is known."""
        return not any(self._shards)

    def get(self, key: int) -> Run | None:
        """Return the run of a block, or None."""
        mark = self._shards[key >> _SHIFT].get(key & _LOW)
        return None if mark is None else self._runs[mark]

    def put(self, keys: "array[int]", run: Run) -> None:
        """Let the blocks of *keys*, an ``array("Q")``, be found in *run*."""
        mark = run.mark
        self._runs[mark] = run
        if self._shards is _NONE:
            self._shards = [{} for _ in range(_NUM_SHARDS)]
        shards = self._shards
        # C takes the keys apart: there is no arithmetic for each.
        content = bytearray(keys.tobytes())
        highs = content[_HIGH_BYTE::_KEY_BYTES]
        content[_HIGH_BYTE::_KEY_BYTES] = highs.translate(_LOW_OF)
        lows = array("Q")
        lows.frombytes(content)
        shards_of = bytes(highs.translate(_SHARD_OF))  # mypyc cannot walk a bytearray
        for at, low in zip(shards_of, lows):  # noqa: B905 - made of each other
            shards[at][low] = mark

    def put_back(self, key: int, run: Run) -> None:
        """Let one block be found again that was taken out."""
        self._shards[key >> _SHIFT][key & _LOW] = run.mark

    def close(self, run: Run) -> None:
        """Forget a run in which no block is to be found any more."""
        del self._runs[run.mark]

    def pop(self, key: int) -> None:
        """Forget a block, known or not."""
        self._shards[key >> _SHIFT].pop(key & _LOW, None)

    def take(self) -> tuple[int, Run] | None:
        """Take out any block; None once in a while, and always when there is none.

        For one that is emptied: what a dict had grown to is freed on the way, one
        dict a call.
        """
        shards = self._shards
        if shards[self._at]:
            low, mark = shards[self._at].popitem()
            return self._at << _SHIFT | low, self._runs[mark]
        if shards is not _NONE:
            shards[self._at] = {}
        self._at = (self._at + 1) & _LAST
        return None

    def compact(self) -> None:
        """Give back what one dict has grown to; call it again for the others.

        Under steady replacement they grow to twice what their entries need.
        """
        self._at = (self._at + 1) & _LAST
        shard = self._shards[self._at]
        if getsizeof(shard) > _MAX_ENTRY_BYTES * len(shard) + _SLACK_BYTES:
            self._shards[self._at] = dict(shard)

    def copy(self) -> dict[int, Run]:
        """Return all of it as one dict. O(keys)."""
        return {
            at << _SHIFT | low: self._runs[mark]
            for at, shard in enumerate(self._shards)
            for low, mark in shard.items()
        }

    def runs(self) -> list[Run]:
        """List the runs in which a block may be found."""
        return list(self._runs.values())
