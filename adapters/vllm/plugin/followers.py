"""Which noted blocks stand directly behind which other one."""

from collections.abc import Collection

from warmroute.policies.kv.shards import LAST, Shards


class Followers:
    """Know the blocks behind each block. O(1) a call.

    Nearly every block has one block behind it, so a set is only made for forks.
    """

    __slots__ = ("_behind",)

    def __init__(self) -> None:
        self._behind: Shards[int, bytes | set[bytes]] = Shards()

    def __repr__(self) -> str:
        return f"<Followers of {len(self._behind)} blocks>"

    def __len__(self) -> int:
        return len(self._behind)

    def of(self, parent: int) -> Collection[bytes]:
        """Return the hashes of the blocks behind *parent*."""
        found = self._behind.tables[hash(parent) & LAST].get(parent, ())
        return (found,) if isinstance(found, bytes) else found

    def add(self, parent: int | None, block_hash: bytes) -> None:
        """Note that a block stands behind *parent*; again is no matter."""
        if parent is None:
            return
        shard = self._behind.tables[hash(parent) & LAST]
        found = shard.setdefault(parent, block_hash)
        if isinstance(found, set):
            found.add(block_hash)
        elif found != block_hash:
            shard[parent] = {found, block_hash}

    def discard(self, parent: int | None, block_hash: bytes) -> None:
        """Forget that a block stands behind *parent*."""
        if parent is None:
            return
        shard = self._behind.tables[hash(parent) & LAST]
        found = shard.get(parent)
        if isinstance(found, set):
            found.discard(block_hash)
            if not found:
                del shard[parent]
        elif found == block_hash:
            del shard[parent]
