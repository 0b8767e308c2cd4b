"""Dropping and demoting named blocks of an engine, between two steps."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from warmroute.adapters.kv_control import Reason
from warmroute.adapters.vllm.plugin.contents import Contents
from warmroute.adapters.vllm.plugin.ports import Block, Pool

SLICE = 4
"""Blocks that are dropped before the engine may go on.

One takes a tenth of a millisecond under a policy that ranks each several times.
"""

LEVELS = 4_096
"""Depths without blocks that are passed over before the engine may go on."""

Levels = dict[int, "array[int]"]
"""Keys by depth, in arrays: the garbage collector has nothing to look at in those."""


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

    def drop(self, pieces: Iterable[Sequence[int]]) -> Iterator[Dropped]:
        """Drop blocks, the deepest first; yields after each slice.

        Whether a block is used or followed by others is looked at anew in every
        slice, because the engine goes on in between.

        Args:
            pieces: The keys, each once, in as many pieces as they are looked at.
        """
        levels: Levels = {}
        for _ in self._sort(pieces, levels):
            yield Dropped([], [])
        for some in _slices(levels, reverse=True):
            yield self._drop_slice(some)

    def demote(self, pieces: Iterable[Sequence[int]]) -> Iterator[int]:
        """Make unused blocks the next victims; yields how many after each slice.

        Args:
            pieces: The keys, each once, in as many pieces as they are looked at.
        """
        levels: Levels = {}
        for _ in self._sort(pieces, levels):
            yield 0
        # What is put in front last is the first to go, so the tails come last.
        for some in _slices(levels, reverse=False):
            yield self._demote_slice(some[::-1])

    def _sort(self, pieces: Iterable[Sequence[int]], levels: Levels) -> Iterator[None]:
        """Sort keys into *levels* by depth, a piece each; unknown ones as the least."""
        for keys in pieces:
            for key in keys:
                content = self._contents.get(key)
                depth = -1 if content is None else content.depth
                levels.setdefault(depth, array("Q")).append(key)
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
    """Take keys out of *levels* in the order of their depth, some at a time.

    Each is let go as it is yielded: letting go of many at once takes long, too.
    """
    some: list[int] = []
    depths = range(-1, max(levels, default=-1) + 1)
    for count, depth in enumerate(reversed(depths) if reverse else depths, 1):
        level = levels.pop(depth, array("Q"))
        while level:
            some.append(level.pop())
            if len(some) == SLICE:
                yield some
                some = []
        if count % LEVELS == 0:
            yield some
            some = []
    yield some
