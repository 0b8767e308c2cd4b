"""A walk through all that is cached at one moment, while the engine goes on.

The moment is the one at which the walk begins. Nothing is copied then: the walk goes
through the notes place by place, some at a time, and what is about to change before the
walk comes to it is taken down first, as it was. So each block is found once, as it was
at that moment:

- what was taken down is found at the end, and passed over at its place;
- a note that was made later has a higher number, and is passed over, too;
- what changes behind the walk was found already.

A reset of vLLM's cache gives the pool a new map and changes nothing in the old one,
which the walk keeps. References are counted when a block is found: no event tells of
them, so there is no moment to which they could belong.
"""

from collections.abc import Iterator
from typing import NamedTuple

from warmroute.adapters.vllm.plugin.notes import Content, Notes
from warmroute.adapters.vllm.plugin.ports import CacheMap, Elsewhere, pages_in

AT_ONCE = 64
"""Places that are looked at before the engine may go on."""


class Found(NamedTuple):
    """Say where a block was at the moment.

    Args:
        block_hash: Its hash and group.
        content: What it is made of.
        refs: Most references of a page that has it; None if no page has.
        is_on_host: Whether the host can load it.
    """

    block_hash: bytes
    content: Content
    refs: int | None
    is_on_host: bool


class Walk:
    """Find every block that is cached now, later.

    Args:
        notes: Of all that may be cached.
        cache: Which pages have what.
        host: Has blocks, too.

    Attributes:
        cache: The map that it goes through.
        is_lost: Whether a change was missed; then nothing more is found.
    """

    __slots__ = ("_at", "_host", "_notes", "_taken_down", "_until", "cache", "is_lost")

    def __init__(self, notes: Notes, cache: CacheMap, host: Elsewhere | None) -> None:
        self._notes = notes
        self.cache = cache
        self._host = host
        self._at = 0
        self._until = notes.num_made
        self._taken_down: dict[bytes, Found] = {}
        self.is_lost = False

    def __repr__(self) -> str:
        return f"<Walk [Places: {self._at}, taken down: {len(self._taken_down)}]>"

    def before(self, block_hash: bytes, is_on_host: bool | None = None) -> None:
        """Take down a block that is about to change. O(1).

        Args:
            block_hash: The block.
            is_on_host: Whether the host had it, where that has changed already.
        """
        content = self._notes.get(block_hash)
        if content is None or content.place < self._at:
            return
        if self._is_new(content) or block_hash in self._taken_down:
            return
        found = self._find(block_hash, content)
        if is_on_host is not None:
            found = found._replace(is_on_host=is_on_host)
        self._taken_down[block_hash] = found

    def go(self) -> Iterator[list[Found]]:
        """Yield what is found at some places; what was taken down is left out.

        Raises:
            RuntimeError: A change was missed.
        """
        end = self._notes.num_places  # those behind are new
        while self._at < end:
            self._check()
            places = range(self._at, min(self._at + AT_ONCE, end))
            self._at = places.stop
            yield list(self._look(places))

    def taken_down(self) -> Iterator[list[Found]]:
        """Yield what was taken down, when nothing is told any more.

        Raises:
            RuntimeError: A change was missed.
        """
        self._check()
        while self._taken_down:
            count = min(AT_ONCE, len(self._taken_down))
            yield [self._taken_down.popitem()[1] for _ in range(count)]

    def _check(self) -> None:
        if self.is_lost:
            raise RuntimeError("a change of the cache was missed")

    def _look(self, places: range) -> Iterator[Found]:
        for block_hash in self._notes.hashes(places):
            content = self._notes.get(block_hash)
            assert content is not None, "a hash at a place is noted"
            if block_hash not in self._taken_down and not self._is_new(content):
                yield self._find(block_hash, content)

    def _is_new(self, content: Content) -> bool:
        return self._notes.number(content.place) >= self._until

    def _find(self, block_hash: bytes, content: Content) -> Found:
        pages = pages_in(self.cache._cache.get(block_hash))
        # After a reset, pages are counted that have something else by now.
        refs = [page.ref_cnt for page in pages if page.block_hash == block_hash]
        host = self._host
        return Found(
            block_hash,
            content,
            max(refs, default=0) if pages else None,
            host is not None and host.has(block_hash),
        )
