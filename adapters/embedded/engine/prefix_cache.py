"""The prefix cache: which blocks are computed, on pages or on the host."""

from __future__ import annotations

from collections.abc import Iterable

from warmroute.adapters.embedded.engine.contents import BlockContent, BlockContents
from warmroute.adapters.embedded.engine.host_pages import HostPages, PageStore
from warmroute.adapters.embedded.engine.sequence import Sequence
from warmroute.adapters.embedded.model.arrays import F32
from warmroute.policies.kv.pool import BlockPool, PoolExhausted


class PrefixCache:
    """Start sequences from blocks that are resident, and register new ones.

    A block is registered when a step is planned that computes the last of its tokens,
    those generated included: a layer stores the keys and values of all rows before any
    of them attends, so that others may start behind it in the same step. At most all
    but the last token of a sequence is taken from the cache, in whole blocks: the last
    one must be computed, for its logits.

    Args:
        pool: Knows which page holds which block.
        contents: Told what a block holds before it is registered.
        store: The bytes of the pages.
        host: Blocks in host memory, None without a host tier.
    """

    __slots__ = (
        "_contents",
        "_fresh",
        "_host",
        "_pool",
        "_store",
        "num_hits",
        "num_host_hits",
        "num_queries",
    )

    def __init__(
        self,
        pool: BlockPool,
        contents: BlockContents,
        store: PageStore,
        host: HostPages | None = None,
    ) -> None:
        self._pool = pool
        self._contents = contents
        self._store = store
        self._host = host
        self._fresh: list[int] = []
        self.num_queries = 0
        self.num_hits = 0
        self.num_host_hits = 0

    def __repr__(self) -> str:
        return f"<PrefixCache: {self.num_hits} of {self.num_queries} tokens hit>"

    def match(self, sequence: Sequence) -> list[int]:
        """Return the pages of a sequence's resident prefix; changes nothing.

        None for a sequence whose prompt must be observed: it is computed whole.
        """
        if sequence.group.is_observed:
            return []
        return self._pool.lookup(self._cacheable(sequence))

    def start(self, sequence: Sequence, pages: list[int]) -> None:
        """Give an empty sequence the pages that `match` found.

        Blocks that follow on the host are copied back into fresh pages, as far as
        there are any.
        """
        table = sequence.table
        table.adopt(self._pool, pages, len(pages) * table.block_size)
        if not sequence.group.is_observed:
            self._append_from_host(sequence, self._cacheable(sequence))
        sequence.num_registered = len(table.pages)

    def count(self, sequence: Sequence) -> None:
        """Count the hit of a request that was admitted for the first time."""
        group = sequence.group
        if group.num_cached_tokens is None:
            group.num_cached_tokens = sequence.num_computed
            self.num_queries += len(group.request.prompt_ids)
            self.num_hits += sequence.num_computed

    def begin_step(self) -> None:
        """Trust what was registered so far: it is computed."""
        self._fresh.clear()

    def undo_step(self) -> None:
        """Drop what was registered in a step that failed; nobody may use it now."""
        self._pool.evict(self._fresh)
        self._fresh.clear()

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        """Make the blocks known that *num_tokens* more tokens fill in this step."""
        if sequence.budgeted is not None:
            return
        size = sequence.table.block_size
        full = (sequence.num_computed + num_tokens) // size
        if full == sequence.num_registered:
            return
        hashes = sequence.block_hashes(full)
        for at in range(sequence.num_registered, full):
            self._register(sequence, at, hashes)
        sequence.num_registered = full

    def offload(self, hashes: Iterable[int]) -> int:
        """Move resident blocks to the host; returns how many are there now.

        Blocks in use, and those with a resident block behind them that stays, are
        copied and keep their page. Of more than the tier holds, the last ones move and
        the head stays. Without a host tier nothing moves.
        """
        if self._host is None:
            return 0
        wanted, moved = set(hashes), []
        named = [one for one in self._pool.snapshot() if one.block_hash in wanted]
        for resident in named[-self._host.tier.capacity_blocks :]:
            content = self._contents.get(resident.block_hash)
            if content is not None:
                self._host.put(content, self._store.read_page(resident.page))
                moved.append(resident.block_hash)
        self._pool.evict(moved)
        return len(moved)

    def restore(self, hashes: Iterable[int]) -> int:
        """Copy blocks from the host into free pages, in the order given.

        A block comes back only when the one in front of it is resident. It stays on
        the host too. Stops when no page is to be had; returns how many came back.
        """
        pages: list[int] = []
        try:
            for block_hash in hashes:
                found = self._restorable(block_hash)
                if found is not None:
                    pages += self._pool.allocate(1)
                    self._fill(pages[-1], block_hash, found)
        except PoolExhausted:
            pass
        finally:
            # Only now, so that the last ones do not evict the first ones.
            self._pool.release(pages)
        return len(pages)

    def _cacheable(self, sequence: Sequence) -> list[int]:
        size = sequence.table.block_size
        return sequence.block_hashes((len(sequence.tokens) - 1) // size)

    def _register(self, sequence: Sequence, at: int, hashes: list[int]) -> None:
        table, request = sequence.table, sequence.group.request
        parent = hashes[at - 1] if at else None
        tokens = sequence.tokens[at * table.block_size : (at + 1) * table.block_size]
        content = BlockContent(
            hashes[at], parent, tuple(tokens), request.cache_salt, at
        )
        self._contents.known(content)
        self._fresh.append(hashes[at])
        self._pool.register(
            table.pages[at],
            hashes[at],
            parent,
            at,
            prompt_blocks=len(request.prompt_ids) // table.block_size,
            turn=request.turn,
        )

    def _append_from_host(self, sequence: Sequence, hashes: list[int]) -> None:
        table = sequence.table
        for block_hash in hashes[len(table.pages) :]:
            found = self._restorable(block_hash)
            if found is None:
                return
            try:
                table.reserve(self._pool, table.block_size)
            except PoolExhausted:
                return
            self._fill(table.pages[-1], block_hash, found)
            if sequence.group.num_cached_tokens is None:
                self.num_host_hits += table.block_size

    def _restorable(self, block_hash: int) -> F32 | None:
        content = self._contents.get(block_hash)
        if self._host is None or content is None or self._pool.lookup([block_hash]):
            return None
        parent = content.parent_hash
        if parent is not None and not self._pool.lookup([parent]):
            return None
        return self._host.get(block_hash)

    def _fill(self, page: int, block_hash: int, found: F32) -> None:
        content = self._contents.get(block_hash)
        assert content is not None, "a block on the host has no content"
        self._store.write_page(page, found)
        self._pool.register(page, block_hash, content.parent_hash, content.depth)
