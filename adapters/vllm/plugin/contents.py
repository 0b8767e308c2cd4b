"""What every cached block of an engine is made of.

vLLM's pool keeps a block's hash but neither its tokens nor its parent. Both are noted
here when a block is cached, which costs some microseconds a block. A note is
kept while some page may still hold the block, so their number is that of the pages.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from warmroute.adapters.vllm.plugin.followers import Followers
from warmroute.adapters.vllm.plugin.notes import Content, Notes
from warmroute.adapters.vllm.plugin.ports import (
    Block,
    Elsewhere,
    Pool,
    Request,
    pages_in,
)
from warmroute.adapters.vllm.plugin.walk import Walk
from warmroute.adapters.vllm.plugin.walks import Walks
from warmroute.policies.kv.shards import LAST, Shards

_GROUP_BYTES = 4
_KEY_BYTES = 8
_LOOKED_AT = 256

ExtraKeys = Callable[[Request, int, int], list[object] | None]


def key_of(block_hash: bytes) -> int:
    """Return the number by which events name a hash with its group."""
    return int.from_bytes(block_hash[-_KEY_BYTES - _GROUP_BYTES : -_GROUP_BYTES], "big")


class Contents:
    """Know what is cached in a pool, by hash and by key.

    Args:
        pool: The pool; what it has is looked up there, never remembered.
        block_size: Tokens a block.
        extra_keys: Tells what else the hash of a request's block covers.

    Attributes:
        host: Keeps blocks that no page holds; None where there is none.
    """

    __slots__ = (
        "_by_key",
        "_extra_keys",
        "_followers",
        "_notes",
        "_on_page",
        "_pool",
        "_spilled",
        "_spilled_once",
        "_walks",
        "block_size",
        "host",
    )

    def __init__(self, pool: Pool, block_size: int, extra_keys: ExtraKeys) -> None:
        self._pool = pool
        self.block_size = block_size
        self._extra_keys = extra_keys
        self._notes = Notes()
        self._walks = Walks(pool, self._notes)
        self._by_key: Shards[int, bytes] = Shards()
        self._followers = Followers()
        self._on_page: list[bytes | None] = [None] * pool.num_gpu_blocks
        self._spilled: deque[bytes] = deque()
        self._spilled_once: Shards[bytes, None] = Shards()  # each is there once
        self.host: Elsewhere | None = None

    def __repr__(self) -> str:
        return f"<Contents [Blocks: {len(self._notes)}]>"

    def __len__(self) -> int:
        return len(self._notes)

    def note(
        self, request: Request, blocks: Sequence[Block], start: int, end: int
    ) -> None:
        """Note that a request's blocks from *start* to *end* are cached now."""
        hashes, tokens, size = (
            request.block_hashes,
            request.all_token_ids,
            self.block_size,
        )
        parent = _event_key(hashes[start - 1]) if start else None
        for depth in range(start, end):
            key = _event_key(hashes[depth])
            block_hash = blocks[depth].block_hash
            if block_hash is not None:
                if block_hash not in self._notes:
                    first = depth * size
                    self._notes.add(
                        block_hash,
                        parent,
                        depth,
                        tokens[first : first + size],
                        self._extra_keys(request, first, first + size),
                    )
                self._put(blocks[depth].block_id, block_hash, key, parent)
            parent = key

    def get(self, key: int) -> Content | None:
        """Return what a block is made of, if it was noted."""
        block_hash = self._by_key.tables[hash(key) & LAST].get(key)
        return None if block_hash is None else self._notes.get(block_hash)

    def hash_of(self, key: int) -> bytes | None:
        """Return the full hash of a block that was noted."""
        return self._by_key.tables[hash(key) & LAST].get(key)

    def pages(self, key: int) -> list[Block]:
        """Return the pages that hold a block: none, one, or copies."""
        block_hash = self._by_key.tables[hash(key) & LAST].get(key)
        return [] if block_hash is None else self.pages_of(block_hash)

    def pages_of(self, block_hash: bytes) -> list[Block]:
        """Return the pages that hold a hash."""
        return pages_in(self._pool.cached_block_hash_to_block._cache.get(block_hash))

    def is_followed(self, key: int) -> bool:
        """Tell whether a block directly behind this one is on a page."""
        return any(map(self.pages_of, self._followers.of(key)))

    def walk(self) -> AbstractContextManager[Walk]:
        """Begin to go through what is cached at this moment."""
        return self._walks.begun(self.host)

    def finish(self, walk: Walk) -> Iterator[None]:
        """Take apart, in slices, the map of a walk whose pool was reset meanwhile."""
        if self._walks.is_last(walk.cache):
            left = walk.cache._cache
            while left:
                for _ in range(min(_LOOKED_AT, len(left))):
                    left.popitem()
                yield

    def noted(self) -> Iterator[list[int]]:
        """Yield the keys of everything noted, on a page or not, some at a time.

        What comes in between may be left out, or be named.
        """
        at = 0
        while at < self._notes.num_places:
            places = range(at, min(at + _LOOKED_AT, self._notes.num_places))
            at = places.stop
            yield list(map(key_of, self._notes.hashes(places)))

    @property
    def num_cached(self) -> int:
        """Different blocks on pages now."""
        return len(self._pool.cached_block_hash_to_block._cache)

    def _put(
        self, block_id: int, block_hash: bytes, key: int, parent: int | None
    ) -> None:
        old = self._on_page[block_id]
        self._on_page[block_id] = block_hash
        self._followers.add(parent, block_hash)
        self._by_key.tables[hash(key) & LAST][key] = block_hash
        if old is not None and old != block_hash and not self.pages_of(old):
            self._left_its_pages(old)
        # Each note looks at two that are kept for the host: looking at as many as come
        # would leave more and more, because those that stay are looked at again.
        for _ in range(min(2, len(self._spilled))):
            spilled = self._spilled.popleft()
            del self._spilled_once.of(spilled)[spilled]
            self._left_its_pages(spilled)

    def _left_its_pages(self, block_hash: bytes) -> None:
        """Forget a block, unless it is back or kept on the host."""
        if block_hash not in self._notes or self.pages_of(block_hash):
            return
        if self.host is not None and self.host.has(block_hash):
            if block_hash not in self._spilled_once:
                self._spilled_once.of(block_hash)[block_hash] = None
                self._spilled.append(block_hash)
            return
        self._walks.before(block_hash)  # the pool of a walk may be reset by now
        self._followers.discard(self._notes.remove(block_hash).parent, block_hash)
        key = key_of(block_hash)
        shard = self._by_key.tables[hash(key) & LAST]
        if shard.get(key) == block_hash:
            del shard[key]


def _event_key(block_hash: bytes) -> int:
    return int.from_bytes(block_hash[-_KEY_BYTES:], "big")
