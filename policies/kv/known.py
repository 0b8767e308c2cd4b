"""Where announced blocks are, by the keys that an engine gave them."""

from array import array
from sys import getsizeof
from typing import Final

from warmroute.policies.kv.run import Run

Table = dict[int, object]

_FULL: Final = 21_845
_MOVED_A_KEY: Final = 4
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
    they have come. What is far off or unknown takes a look a table, 40 ns. A table of
    which less than half is left moves into the newest one, four keys for each that
    goes, so that there are few.

    A key leads to the mark of its run, and only that to the run. To Python's garbage
    collector a dict of mere marks is no container; it would walk through one of runs,
    and hold everybody up for 60 ns a block.

    Args:
        full: Keys that go into one table: the most for which Python's dict makes do
            with places of two bytes.
    """

    __slots__ = ("_full", "_near", "_runs", "_tables")

    def __init__(self, full: int = _FULL) -> None:
        self._full = full
        self._tables: list[Table] = []  # the newest is the last
        self._near = _NOWHERE
        self._runs: dict[object, Run] = {}

    def __repr__(self) -> str:
        return f"<Known [Keys: {len(self)}, tables: {len(self._tables)}]>"

    def __len__(self) -> int:
        return sum(map(len, self._tables))

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing is known."""
        return not any(self._tables)

    def get(self, key: int) -> Run | None:
        """Return the run of a block, or None. O(tables) at worst."""
        mark = self._near.get(key)
        if mark is None:
            mark = self._far(key)
        return None if mark is None else self._runs[mark]

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
                found = self._table_of(key, mark)
                if found is None:
                    continue
                table = found
            del table[key]
        self._near = table
        if 2 * len(table) < self._full and table is not self._tables[-1]:
            self._move(table, _MOVED_A_KEY * len(keys))

    def close(self, run: Run) -> None:
        """Forget a run in which no block is to be found any more."""
        del self._runs[run.mark]

    def any_run(self) -> Run | None:
        """Return any run; None once in a while, and always when there is none.

        For one that is emptied: the tables are freed on the way, one a call.
        """
        if not self._tables:
            return None
        table = self._tables[-1]
        if not table:
            self._free(table)
            return None
        key, mark = table.popitem()
        table[key] = mark
        return self._runs[mark]

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

    def _far(self, key: int) -> object | None:
        """Return what *key* leads to, where that is not in the table at hand."""
        tables = self._tables
        mark = tables[-1].get(key) if tables else None
        if mark is not None:
            return mark
        for table in tables:
            mark = table.get(key)
            if mark is not None:
                self._near = table
                return mark
        return None

    def _table_of(self, key: int, mark: object) -> Table | None:
        """Return the table that leads from *key* to *mark*.

        There is none where the engine has named two blocks alike.
        """
        tables = self._tables
        if tables[-1].get(key) is mark:
            return tables[-1]
        for table in tables:
            if table.get(key) is mark:
                return table
        return None

    def _lead(self, keys: "array[int]", mark: object, run: Run) -> None:
        """Let blocks that are found by *mark* be found in *run*."""
        self._runs[run.mark] = run
        table = self._near
        for key in keys:
            if table.get(key) is not mark:
                found = self._table_of(key, mark)
                if found is None:
                    continue
                table = found
            table[key] = run.mark

    def _with_room(self, num_keys: int) -> Table:
        """Return the newest table, a fresh one where that is full."""
        if not self._tables:
            self._tables.append({})
        elif len(self._tables[-1]) + num_keys > self._full:
            self.compact()
            self._tables.append({})
        return self._tables[-1]

    def _move(self, table: Table, num_keys: int) -> None:
        """Move some keys of a table into the newest one; when empty, it is gone."""
        num_keys = min(num_keys, len(table))
        newest = self._with_room(num_keys)
        for _ in range(num_keys):
            key, mark = table.popitem()
            newest[key] = mark
        if not table:
            self._free(table)

    def _free(self, table: Table) -> None:
        self._tables = [one for one in self._tables if one is not table]
        if self._near is table:
            self._near = _NOWHERE
