"""A fake of the manager of vLLM's host tier, written from its documented behaviour."""

from collections.abc import Iterable
from types import SimpleNamespace


class FakeChunks:
    """Which chunks there are, the least wanted first (``CachePolicy``)."""

    def __init__(self) -> None:
        self.chunks: dict[bytes, SimpleNamespace] = {}

    def get(self, key: bytes) -> SimpleNamespace | None:
        return self.chunks.get(key)

    def remove(self, key: bytes) -> None:
        del self.chunks[key]

    def evict(self, n: int, protected: set[bytes]) -> list[tuple[bytes, object]] | None:
        idle = [key for key, one in self.chunks.items() if one.ref_cnt == 0]
        some = [key for key in idle if key not in protected][:n]
        return [(key, self.chunks.pop(key)) for key in some] if len(some) == n else None


class FakeManager:
    """The chunks of a host tier; those being stored have -1 references."""

    def __init__(self) -> None:
        self._policy = FakeChunks()
        self.chunks = self._policy.chunks
        self.freed: list[object] = []
        self.events: list[object] = []
        self._num_chunks = 9
        self._num_evictable_cache_chunks = 0

    def put(self, block_hash: bytes, ref_cnt: int = 0) -> None:
        chunk = SimpleNamespace(ref_cnt=ref_cnt, is_ready=ref_cnt >= 0)
        self.chunks[block_hash + bytes(4)] = chunk
        self._num_evictable_cache_chunks += ref_cnt == 0

    def complete_store(
        self, keys: Iterable[bytes], context: object, success: bool = True
    ) -> None:
        for key in keys:
            chunk = self.chunks.get(key)
            if chunk is not None and not chunk.is_ready:
                chunk.ref_cnt, chunk.is_ready = 0, True
                self._num_evictable_cache_chunks += 1

    def _free_chunk(self, chunk: object) -> None:
        self.freed.append(chunk)
