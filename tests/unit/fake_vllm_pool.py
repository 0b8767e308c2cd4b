"""A fake of vLLM's block pool, written from its documented behaviour."""

from collections.abc import Iterable, Iterator, Sequence


class FakeBlock:
    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.is_null = False
        self.block_hash: bytes | None = None

    def __repr__(self) -> str:
        return f"<{self.block_id} refs={self.ref_cnt}>"


class FakeQueue:
    """Victims in the order of a list; removing scans it."""

    def __init__(self, blocks: Iterable[FakeBlock]) -> None:
        self.order = list(blocks)

    @property
    def num_free_blocks(self) -> int:
        return len(self.order)

    def popleft(self) -> FakeBlock:
        if not self.order:
            raise ValueError("none")
        return self.order.pop(0)

    def popleft_n(self, n: int) -> list[FakeBlock]:
        assert len(self.order) >= n
        return [self.order.pop(0) for _ in range(n)]

    def remove(self, block: FakeBlock) -> None:
        if block not in self.order:
            raise RuntimeError(block)
        self.order.remove(block)

    def append(self, block: FakeBlock) -> None:
        self.append_n([block])

    def append_n(self, blocks: list[FakeBlock]) -> None:
        assert not set(blocks) & set(self.order)
        self.order += blocks

    def prepend_n(self, blocks: list[FakeBlock]) -> None:
        assert not set(blocks) & set(self.order)
        self.order[:0] = blocks

    def get_all_free_blocks(self) -> list[FakeBlock]:
        return list(self.order)

    def iter_blocks_after(self, cursor: FakeBlock | None) -> Iterator[FakeBlock]:
        return iter(self.order[self.order.index(cursor) + 1 if cursor else 0 :])


class FakeMap:
    def __init__(self) -> None:
        self._cache: dict[bytes, object] = {}

    def insert(self, key: bytes, block: FakeBlock) -> None:
        entry = self._cache.get(key)
        if entry is None:
            self._cache[key] = block
        elif isinstance(entry, dict):
            entry[block.block_id] = block
        else:
            self._cache[key] = {entry.block_id: entry, block.block_id: block}

    def pop(self, key: bytes, block_id: int) -> FakeBlock | None:
        entry = self._cache.pop(key, None)
        if not isinstance(entry, dict):
            return entry
        block = entry.pop(block_id, None)
        if entry:
            self._cache[key] = entry
        return block


class FakeRequest:
    """A request with tokens; its hashes are made of the tokens' values."""

    def __init__(self, tokens: Sequence[int], size: int, salt: str | None = None):
        self.request_id = "r"
        self.all_token_ids = list(tokens)
        self.cache_salt = salt
        self.lora_request = None
        self.mm_features: list[object] = []
        self.prompt_embeds = None
        self.block_hashes = chain(tokens, size, salt)
        self.pages: list[FakeBlock] = []


def chain(tokens: Sequence[int], size: int, salt: str | None = None) -> list[bytes]:
    parent, hashes = hash(salt) & 0xFFFF, []
    for end in range(size, len(tokens) + 1, size):
        parent = hash((parent, *tokens[end - size : end])) & (2**64 - 1)
        hashes.append(bytes(24) + parent.to_bytes(8, "big"))
    return hashes


def key(block_hash: bytes) -> int:
    return int.from_bytes(block_hash[-8:], "big")


class FakePool:
    """Pages, references, the cache, and events as tuples."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_gpu_blocks = num_blocks
        self.enable_caching = True
        self.enable_kv_cache_events = True
        self.hash_block_size = block_size
        self.blocks = [FakeBlock(number) for number in range(num_blocks)]
        self.free_block_queue = FakeQueue(self.blocks[1:])
        self.cached_block_hash_to_block = FakeMap()
        self.events: list[tuple[str, int]] = []

    def run(self, request: FakeRequest) -> int:
        """Allocate a request's pages and cache them; returns the blocks hit."""
        cache = self.cached_block_hash_to_block._cache
        hits = []
        for block_hash in request.block_hashes:
            entry = cache.get(block_hash + bytes(4))
            if entry is None:
                break
            page = next(iter(entry.values())) if isinstance(entry, dict) else entry
            hits.append(page)
        self.touch(hits)
        new = self.free_block_queue.popleft_n(len(request.block_hashes) - len(hits))
        for page in new:
            self.evict_blocks({page.block_id})
            page.ref_cnt = 1
        request.pages = [*hits, *new]
        end = len(request.block_hashes)
        self.cache_full_blocks(request, request.pages, len(hits), end, 0, 0, None)
        return len(hits)

    def finish(self, request: FakeRequest) -> None:
        self.free_blocks(reversed(request.pages))
        request.pages = []

    def cache_full_blocks(
        self, request, blocks, start, end, block_size, group, mask=None
    ) -> None:
        for depth in range(start, end):
            self.put(request.block_hashes[depth], blocks[depth])

    def put(self, block_hash: bytes, page: FakeBlock) -> None:
        page.block_hash = block_hash + bytes(4)
        self.cached_block_hash_to_block.insert(page.block_hash, page)
        self.events.append(("stored", key(block_hash)))

    def get_new_blocks(self, num_blocks: int) -> list[FakeBlock]:
        if num_blocks > self.get_num_free_blocks():
            raise ValueError("none")
        pages = self.free_block_queue.popleft_n(num_blocks)
        for page in pages:
            self.evict_blocks({page.block_id})
            page.ref_cnt = 1
        return pages

    def touch(self, blocks: Sequence[FakeBlock]) -> None:
        for block in blocks:
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[FakeBlock]) -> None:
        first, last = [], []
        for block in ordered_blocks:
            assert block.ref_cnt > 0
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                (first if block.block_hash is None else last).append(block)
        self.free_block_queue.prepend_n(first)
        self.free_block_queue.append_n(last)

    def evict_blocks(self, block_ids: set[int]) -> None:
        for block_id in block_ids:
            page = self.blocks[block_id]
            if page.block_hash is None:
                continue
            self.cached_block_hash_to_block.pop(page.block_hash, block_id)
            self.events.append(("removed", key(page.block_hash[:-4])))
            page.block_hash = None

    def reset_prefix_cache(self) -> bool:
        if self.get_num_free_blocks() != self.num_gpu_blocks - 1:
            return False
        self.cached_block_hash_to_block = FakeMap()
        for page in self.blocks:
            page.block_hash = None
        self.events.append(("cleared", 0))
        return True

    def get_num_free_blocks(self) -> int:
        return self.free_block_queue.num_free_blocks

    def check(self) -> None:
        """Raise AssertionError unless every page is where it belongs."""
        free = self.free_block_queue.get_all_free_blocks()
        assert len(free) == len(set(free)) == self.get_num_free_blocks()
        assert set(free) == {one for one in self.blocks[1:] if one.ref_cnt == 0}
