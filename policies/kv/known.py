"""Where announced blocks are, by the keys that an engine gave them."""

from array import array
from sys import getsizeof
from typing import Final

from warmroute.policies.kv.run import Run

Table = dict[int, object]

_FULL: Final = 21_845
_MOVED_A_KEY: Final = 4
_TIMES_A_TABLE: Final = 128
_MAX_ENTRY_BYTES: Final = 54
_SLACK_BYTES: Final = 512
_NOWHERE: Final[Table] = {}


class Known:
    """The run of each announced block of one holder, by the engine's own key.

    Keys say nothing about where they belong, so that each has a place in a table of
    all of them that no cache of the processor has at hand. Here they fill small tables
    one after another: to enter one takes a third of that, and no table is so large
    that to copy it, when it grows, holds anybody up.

    A key is looked for in the table where one was found before, in the newest one, and
    in the others, the oldest first: prompts go on where they were, and blocks go as
    they have come. What is far off or unknown takes a look at each table. The table
    that has the fewest keys moves into the newest one when less than half is left, some
    keys for each that goes, wherever that was: so there are few, and none lasts that is
    as good as empty.

    A key leads to the mark of its run, and only that to the run. To Python's garbage
    collector a dict of mere marks is no container; it would walk through one of runs,
    and hold everybody up for 60 ns a block.

    Args:
        full: Keys that go into one table: the most for which Python's dict makes do
            with places of two bytes.
    """

    __slots__ = ("_full", "_near", "_num_gone", "_runs", "_tables")

    def __init__(self, full: int = _FULL) -> None:
        self._full = full
        self._tables: list[Table] = []  # the newest is the last
        self._near = _NOWHERE
        self._num_gone = 0
        self._runs: dict[object, Run] = {}

    def __repr__(self) -> str:
        return f"<Known [Keys: {len(self)}, tables: {len(self._tables)}]>"

    def __len__(self) -> int:
        return sum(map(len, self._tables))

    def get(self, key: int) -> Run | None:
        """Return the run of a block, or None. O(tables) at worst."""
        mark = self._near.get(key)
        if mark is None:
            table = self._table_of(key)
            if table is None:
                return None
            mark = table[key]
            if table is not self._tables[-1]:
                self._near = table
        return self._runs[mark]

    def put(self, keys: "array[int]", run: Run) -> None:
        """Let the blocks of *keys*, an ``array("Q")``, be found in *run*."""
        mark = run.mark
        self._runs[mark] = run
        table = self._with_room(len(keys))
        for key in keys.tolist():
            table[key] = mark

    def part(
        self, head: Run, keys: "array[int]", run: Run, rest: "array[int] | None"
    ) -> None:
        """Let blocks be found in both parts of a run that was split.

        One of them has a new mark, and only its keys are led elsewhere.

        Args:
            head: The part in front.
            keys: Those of its blocks.
            run: The part behind.
            rest: Those of its blocks; None where the holder has none of them.
        """
        if run.mark in self._runs:
            self._lead(keys, run.mark, head)
            if rest is None:
                self.close(run)
            return
        self._runs[head.mark] = head
        if rest is not None:
            self._lead(rest, head.mark, run)

    def forget(self, keys: "array[int]", run: Run) -> None:
        """Let blocks of *run* be found no more."""
        mark, table = run.mark, self._near
        for key in keys:
            if table.get(key) is not mark:
                table = self._table_of(key, mark) or _NOWHERE
                if not table:
                    continue
            del table[key]
        self._near = table
        self._num_gone += len(keys)
        if self._num_gone * _TIMES_A_TABLE >= self._full:
            self._thin_out(_MOVED_A_KEY * self._num_gone)
            self._num_gone = 0

    def close(self, run: Run) -> None:
        """Forget a run in which no block is to be found any more."""
        del self._runs[run.mark]
        if not self._runs:
            self._tables, self._near = [], _NOWHERE

    def any_run(self) -> Run | None:
        """Return any run in which a block is found; None when there is none."""
        for table in reversed(self._tables):
            if table:
                key, mark = table.popitem()  # is as fast where many have gone
                table[key] = mark
                return self._runs[mark]
        return None

    def compact(self) -> None:
        """Give back what the newest table has grown to beyond its need.

        Under steady replacement it grows to twice what its entries need.
        """
        if not self._tables:
            return
        table = self._tables[-1]
        if getsizeof(table) > _MAX_ENTRY_BYTES * len(table) + _SLACK_BYTES:
            self._free(table)
            self._tables.append(dict(table))

    def copy(self) -> dict[int, Run]:
        """Return all of it as one dict. O(keys)."""
        return {
            key: self._runs[mark]
            for table in self._tables
            for key, mark in table.items()
        }

    def runs(self) -> list[Run]:
        """List the runs in which a block may be found."""
        return list(self._runs.values())

    def _table_of(self, key: int, mark: object = None) -> Table | None:
        """Return the table of *key*, or the one that leads from it to *mark*.

        There may be none where the engine has named two blocks alike.
        """
        for table in self._tables[-1:] + self._tables:
            found = table.get(key)
            if found is not None and (mark is None or found is mark):
                return table
        return None

    def _lead(self, keys: "array[int]", mark: object, run: Run) -> None:
        """Let blocks that are found by *mark* be found in *run*."""
        new, table = run.mark, self._near
        self._runs[new] = run
        for key in keys:
            if table.get(key) is not mark:
                table = self._table_of(key, mark) or _NOWHERE
                if not table:
                    continue
            table[key] = new

    def _with_room(self, num_keys: int) -> Table:
        """Return the newest table, a fresh one where that is full."""
        if not self._tables:
            self._tables.append({})
        elif len(self._tables[-1]) + num_keys > self._full:
            self.compact()
            self._tables.append({})
        return self._tables[-1]

    def _thin_out(self, num_keys: int) -> None:
        """Move keys of the tables with the fewest; where none is left, it goes."""
        while num_keys > 0:
            table = min(self._tables[:-1], key=len, default=None)
            if table is None or 2 * len(table) >= self._full:
                return
            num_moved = min(num_keys, len(table))
            newest = self._with_room(num_moved)
            for _ in range(num_moved):
                key, mark = table.popitem()
                newest[key] = mark
            num_keys -= num_moved
            if not table:
                self._free(table)

    def _free(self, table: Table) -> None:
        self._tables = [one for one in self._tables if one is not table]
        if self._near is table:
            self._near = _NOWHERE
