"""Dropping and demoting named blocks of an engine, between two steps."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from warmroute.adapters.kv_control import Reason
from warmroute.adapters.vllm.plugin.contents import Contents
from warmroute.adapters.vllm.plugin.ports import Block, Pool

SLICE = 128
"""Blocks that are dropped before the engine may go on."""

SORTED = 2_048
"""Blocks that are sorted by depth before the engine may go on."""

Levels = dict[int, list[int]]


class Dropped(NamedTuple):
    """Say what became of some of the blocks named."""

    evicted: list[int]
    kept: list[tuple[int, Reason]]


class Evictor:
    """Drop or demote blocks that nobody uses.

    Args:
        pool: The engine's pool.
        contents: Knows pages, depths and children.
    """

    __slots__ = ("_contents", "_pool")

    def __init__(self, pool: Pool, contents: Contents) -> None:
        self._pool = pool
        self._contents = contents

    def __repr__(self) -> str:
        return f"<Evictor {self._contents!r}>"

    def drop(self, keys: Iterable[int]) -> Iterator[Dropped]:
        """Drop blocks, the deepest first; yields after each slice.

        Whether a block is used or followed by others is looked at anew in every
        slice, because the engine goes on in between.
        """
        levels: Levels = {}
        for _ in self._sort(keys, levels):
            yield Dropped([], [])
        for some in _slices(levels, reverse=True):
            yield self._drop_slice(some)

    def demote(self, keys: Iterable[int]) -> Iterator[int]:
        """Make unused blocks the next victims; yields how many after each slice."""
        levels: Levels = {}
        for _ in self._sort(keys, levels):
            yield 0
        # What is put in front last is the first to go, so the tails come last.
        for some in _slices(levels, reverse=False):
            yield self._demote_slice(some[::-1])

    def _sort(self, keys: Iterable[int], levels: Levels) -> Iterator[None]:
        """Sort keys into *levels* by depth, in slices; unknown ones as the least."""
        for at, key in enumerate(dict.fromkeys(keys), 1):
            content = self._contents.get(key)
            depth = -1 if content is None else content.depth
            levels.setdefault(depth, []).append(key)
            if at % SORTED == 0:
                yield

    def _drop_slice(self, keys: list[int]) -> Dropped:
        done = Dropped([], [])
        free: list[Block] = []
        try:
            for key in keys:
                pages = self._contents.pages(key)
                reason = self._reason_to_keep(key, pages)
                if reason is None:
                    self._forget(pages, free)
                    done.evicted.append(key)
                else:
                    done.kept.append((key, reason))
        finally:  # whatever happens, no page is lost
            self._pool.free_block_queue.prepend_n(free)
        return done

    def _reason_to_keep(self, key: int, pages: list[Block]) -> Reason | None:
        if not pages:
            return "absent"
        if any(page.ref_cnt for page in pages):
            return "referenced"
        return "followed" if self._contents.is_followed(key) else None

    def _forget(self, pages: list[Block], free: list[Block]) -> None:
        queue = self._pool.free_block_queue
        for page in pages:
            queue.remove(page)
            free.append(page)
        self._pool.evict_blocks({page.block_id for page in pages})

    def _demote_slice(self, keys: list[int]) -> int:
        queue = self._pool.free_block_queue
        victims: list[Block] = []
        num_demoted = 0
        try:
            for key in keys:
                pages = self._contents.pages(key)
                if pages and not any(page.ref_cnt for page in pages):
                    for page in pages:
                        queue.remove(page)
                        victims.append(page)
                    num_demoted += 1
        finally:
            queue.prepend_n(victims)
        return num_demoted


def _slices(levels: Levels, reverse: bool) -> Iterator[list[int]]:
    """Yield keys in the order of their depth, some at a time."""
    some: list[int] = []
    for depth in sorted(levels, reverse=reverse):
        for key in levels[depth]:
            some.append(key)
            if len(some) == SLICE:
                yield some
                some = []
    if some:
        yield some
