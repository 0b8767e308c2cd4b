"""The host tier with its bytes: blocks that left the pages."""

from __future__ import annotations

from typing import Protocol

from warmroute.adapters.embedded.engine.contents import BlockContent, BlockContents
from warmroute.adapters.embedded.model.arrays import F32
from warmroute.policies.kv.host import HostTier


class PageStore(Protocol):
    """Memory whose pages can be copied, read and written as a whole."""

    def copy_page(self, source: int, target: int) -> None:
        """Copy the content of a page to another one."""
        ...

    def read_page(self, page: int) -> F32:
        """Return a copy of a page."""
        ...

    def write_page(self, page: int, content: F32) -> None:
        """Put what `read_page` returned into a page."""
        ...


class HostPages:
    """Keep the keys and values of offloaded blocks in host memory.

    Args:
        capacity_blocks: Blocks that fit; the least recently used goes first.
        contents: Told which blocks enter and leave the tier, and knows what they
            hold.
    """

    __slots__ = ("_blocks", "_contents", "_pages", "tier")

    def __init__(
        self,
        capacity_blocks: int,
        contents: BlockContents,
    ) -> None:
        self.tier = HostTier(capacity_blocks)
        self._contents = contents
        self._blocks: dict[int, int] = {}
        self._pages: dict[int, F32] = {}

    def __repr__(self) -> str:
        return f"<HostPages of {self.tier!r}>"

    def __contains__(self, block_hash: int) -> bool:
        return block_hash in self.tier

    def put(self, content: BlockContent, page: F32) -> None:
        """Keep a block; the tier may give another one up for it."""
        is_new = content.block_hash not in self.tier
        place = self.tier.store(content.block_hash, content.parent_hash, content.depth)
        if is_new:
            evicted = self._blocks.get(place)
            if evicted is not None:
                self._contents.leave(evicted, "CPU")
            self._blocks[place] = content.block_hash
            self._pages[place] = page
            self._contents.enter(content.block_hash, "CPU")

    def get(self, block_hash: int) -> F32 | None:
        """Return what `put` took, None when the block is not here."""
        place = self.tier.find(block_hash)
        if place is None:
            return None
        self.tier.touch(block_hash)
        return self._pages[place]

    def drop(self, block_hash: int) -> bool:
        """Forget a block; tells whether it was here."""
        place = self.tier.find(block_hash)
        if place is None:
            return False
        self.tier.drop(block_hash)
        del self._blocks[place], self._pages[place]
        self._contents.leave(block_hash, "CPU")
        return True

    def clear(self) -> None:
        """Forget every block."""
        for block_hash in list(self._blocks.values()):
            self.drop(block_hash)
