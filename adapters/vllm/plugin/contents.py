"""What every cached block of an engine is made of.

vLLM's pool keeps a block's hash but neither its tokens nor its parent. Both are noted
here when a block is cached, which costs about a microsecond a block. A note is
kept while some page may still hold the block, so their number is that of the pages.
"""

from array import array
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from warmroute.adapters.vllm.plugin.followers import Followers
from warmroute.adapters.vllm.plugin.ports import Block, Pool, Request

_GROUP_BYTES = 4
_KEY_BYTES = 8

ExtraKeys = Callable[[Request, int, int], list[object] | None]


class Content(msgspec.Struct, frozen=True, gc=False):
    """Describe one cached block."""

    parent: int | None
    depth: int
    tokens: Sequence[int]
    extra_keys: list[object] | None


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
        is_elsewhere: Tells whether a block that no page holds is kept on the host.
    """

    __slots__ = (
        "_by_hash",
        "_by_key",
        "_extra_keys",
        "_followers",
        "_on_page",
        "_pool",
        "_spilled",
        "block_size",
        "is_elsewhere",
    )

    def __init__(self, pool: Pool, block_size: int, extra_keys: ExtraKeys) -> None:
        self._pool = pool
        self.block_size = block_size
        self._extra_keys = extra_keys
        self._by_hash: dict[bytes, Content] = {}
        self._by_key: dict[int, bytes] = {}
        self._followers = Followers()
        self._on_page: list[bytes | None] = [None] * pool.num_gpu_blocks
        self._spilled: deque[bytes] = deque()
        self.is_elsewhere: Callable[[bytes], bool] | None = None

    def __repr__(self) -> str:
        return f"<Contents [Blocks: {len(self._by_hash)}]>"

    def __len__(self) -> int:
        return len(self._by_hash)

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
                first = depth * size
                self._put(
                    blocks[depth].block_id,
                    block_hash,
                    key,
                    Content(
                        parent,
                        depth,
                        array("I", tokens[first : first + size]),
                        self._extra_keys(request, first, first + size),
                    ),
                )
            parent = key

    def get(self, key: int) -> Content | None:
        """Return what a block is made of, if it was noted."""
        block_hash = self._by_key.get(key)
        return None if block_hash is None else self._by_hash.get(block_hash)

    def hash_of(self, key: int) -> bytes | None:
        """Return the full hash of a block that was noted."""
        return self._by_key.get(key)

    def pages(self, key: int) -> list[Block]:
        """Return the pages that hold a block: none, one, or copies."""
        block_hash = self._by_key.get(key)
        return [] if block_hash is None else self.pages_of(block_hash)

    def pages_of(self, block_hash: bytes) -> list[Block]:
        """Return the pages that hold a hash."""
        return pages_in(self._pool.cached_block_hash_to_block._cache.get(block_hash))

    def is_followed(self, key: int) -> bool:
        """Tell whether a block directly behind this one is on a page."""
        return any(map(self.pages_of, self._followers.of(key)))

    def captured(self) -> tuple[dict[bytes, object], dict[bytes, Content]]:
        """Copy what is cached now, and what it is made of; at the speed of C."""
        cached = self._pool.cached_block_hash_to_block._cache
        return dict(cached), dict(self._by_hash)

    def noted(self) -> list[int]:
        """List the keys of everything noted, on a page or not."""
        return list(self._by_key)

    @property
    def num_cached(self) -> int:
        """Different blocks on pages now."""
        return len(self._pool.cached_block_hash_to_block._cache)

    def _put(
        self, block_id: int, block_hash: bytes, key: int, content: Content
    ) -> None:
        old = self._on_page[block_id]
        self._on_page[block_id] = block_hash
        self._by_hash[block_hash] = content
        self._followers.add(content.parent, block_hash)
        self._by_key[key] = block_hash
        if old is not None and old != block_hash and not self.pages_of(old):
            self._left_its_pages(old)
        if self._spilled:  # each note looks at one that is kept for the host
            self._left_its_pages(self._spilled.popleft())

    def _left_its_pages(self, block_hash: bytes) -> None:
        """Forget a block, unless it is back or kept on the host."""
        if block_hash not in self._by_hash or self.pages_of(block_hash):
            return
        if self.is_elsewhere is not None and self.is_elsewhere(block_hash):
            self._spilled.append(block_hash)
            return
        self._followers.discard(self._by_hash.pop(block_hash).parent, block_hash)
        if self._by_key.get(key_of(block_hash)) == block_hash:
            del self._by_key[key_of(block_hash)]


def pages_in(entry: object) -> list[Block]:
    """Read an entry of vLLM's map: nothing, a page, or pages by their number."""
    if entry is None:
        return []
    if isinstance(entry, dict):
        return list(entry.values())
    return [entry]  # type: ignore[list-item]


def _event_key(block_hash: bytes) -> int:
    return int.from_bytes(block_hash[-_KEY_BYTES:], "big")
