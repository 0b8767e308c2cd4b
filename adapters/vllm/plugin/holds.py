"""Blocks of an engine that are kept from eviction by a reference of ours."""

from collections.abc import Callable, Iterable, Sequence

from warmroute.adapters.vllm.plugin.contents import Contents
from warmroute.adapters.vllm.plugin.ports import Block, Pool
from warmroute.policies.kv.shards import Shards


class PoolHolds:
    """Hold blocks of vLLM's pool, for `Retention`.

    A hold is one reference like a request's, so that vLLM neither evicts nor resets
    what is held, and counts it as used.

    Args:
        pool: The engine's pool.
        contents: Finds the pages of a block.
    """

    __slots__ = ("_contents", "_held", "_pool")

    def __init__(self, pool: Pool, contents: Contents) -> None:
        self._pool = pool
        self._contents = contents
        self._held: Shards[int, int] = Shards()  # the number of the page of each

    def __repr__(self) -> str:
        return f"<PoolHolds [Blocks: {len(self._held)}]>"

    @property
    def num_pages(self) -> int:
        """Pages of the pool, the one that is never given out included."""
        return self._pool.num_gpu_blocks

    @property
    def num_held(self) -> int:
        """Blocks held now."""
        return len(self._held)

    def lookup(self, block_hashes: Sequence[int]) -> list[Block]:
        """Return a page for each leading resident block of a chain."""
        found: list[Block] = []
        for key in block_hashes:
            pages = self._contents.pages(key)
            if not pages:
                break
            found.append(pages[0])
        return found

    def hold(self, block_hashes: Iterable[int]) -> None:
        """Take a reference of each; they are resident."""
        for key in block_hashes:
            page = self._contents.pages(key)[0]
            self._pool.touch([page])
            self._held.of(key)[key] = page.block_id

    def unhold(self, block_hashes: Sequence[int]) -> int:
        """Drop our reference of each that we hold, the tail of a chain first."""
        pages = [
            self._pool.blocks[self._held.of(key).pop(key)]
            for key in reversed(block_hashes)
            if key in self._held
        ]
        self._pool.free_blocks(pages)
        return len(pages)

    def add_reclaimer(self, reclaim: Callable[[int], int]) -> None:
        """Do without: vLLM's pool asks nobody; what is due is let go by a timer."""
