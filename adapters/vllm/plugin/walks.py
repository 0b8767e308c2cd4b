"""The walks that are under way, and what has them told of changes.

Only while there are any, the pool's map and the host say what they are about to do.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from warmroute.adapters.vllm.plugin.notes import Notes
from warmroute.adapters.vllm.plugin.ports import Block, CacheMap, Elsewhere, Pool
from warmroute.adapters.vllm.plugin.walk import Walk

logger = logging.getLogger(__name__)


class Walks:
    """Begin walks through what is cached, and tell them of every change.

    Args:
        pool: Whose map is watched.
        notes: Of all that may be cached.
    """

    __slots__ = ("_notes", "_open", "_pool")

    def __init__(self, pool: Pool, notes: Notes) -> None:
        self._pool = pool
        self._notes = notes
        self._open: list[Walk] = []

    def __repr__(self) -> str:
        return f"<Walks [Open: {len(self._open)}]>"

    @contextmanager
    def begun(self, host: Elsewhere | None) -> Iterator[Walk]:
        """Begin a walk, which is told of changes until the block ends."""
        cache = self._pool.cached_block_hash_to_block
        walk = Walk(self._notes, cache, host)
        if not self._goes_through(cache):
            self._watch(cache)
        self._open.append(walk)
        try:
            if host is not None and len(self._open) == 1:
                host.tell(self.before)
            yield walk
        finally:
            self._open.remove(walk)
            if not self._goes_through(cache):
                _leave(cache)
            if host is not None and not self._open:
                host.tell(None)

    def before(self, block_hash: bytes, is_on_host: bool | None = None) -> None:
        """Tell all walks that a block is about to change; never raises.

        The engine is in a step here, so what fails ends the walks and nothing else.
        """
        try:
            for walk in self._open:
                walk.before(block_hash, is_on_host)
        except Exception:
            logger.exception("warmroute: a snapshot has missed a change")
            for walk in self._open:
                walk.is_lost = True

    def is_last(self, cache: CacheMap) -> bool:
        """Tell whether nobody else needs a map: neither the pool nor a walk."""
        is_dropped = self._pool.cached_block_hash_to_block is not cache
        return is_dropped and not self._goes_through(cache)

    def _goes_through(self, cache: CacheMap) -> bool:
        return any(walk.cache is cache for walk in self._open)

    def _watch(self, cache: Any) -> None:
        insert, pop = cache.insert, cache.pop

        def told_insert(key: bytes, block: Block) -> None:
            self.before(key)
            insert(key, block)

        def told_pop(key: bytes, block_id: int) -> Block | None:
            self.before(key)
            popped: Block | None = pop(key, block_id)
            return popped

        cache.insert, cache.pop = told_insert, told_pop


def _leave(cache: Any) -> None:
    del cache.insert, cache.pop
