"""The block pool: which page holds what, who uses it, and what goes when it is full.

A page is in one of three states, and every operation moves it between them:

- *blank*: nothing in it is worth keeping. Handed out first, lowest ids first, because
  attention over consecutive pages is faster.
- *cached*: registered under the hash of its content, and nobody uses it. Found by
  `lookup`; the eviction policy decides when it goes.
- *referenced*: in at least one block table, or held by the pool itself. Registered or
  not, it is no victim.

A hash has one page: nobody could tell two apart, so the second would only take room.
vLLM keeps both, and pays with a list of pages a hash.

Page 0 is the null page. It stands in block tables for evicted middles and is never
handed out; `share` and `release` pass over it.

The design is PagedAttention's (Kwon et al. 2023, section 4) with the free order of
vLLM: of a chain that is released together the tail goes first, since a block is of no
use without those in front of it. Single-threaded; it moves no bytes.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from warmroute.policies.errors import PolicyError
from warmroute.policies.eviction.base import BlockEviction, BlockFacts
from warmroute.policies.eviction.lru import Lru
from warmroute.policies.kv.observer import PoolObserver, SilentObserver
from warmroute.policies.kv.page_errors import (
    PoolExhausted,
    blank_shared,
    released_twice,
    wrong_content,
)
from warmroute.policies.kv.residents import Residents

NULL_PAGE = 0
"""The page that stands for evicted middles."""


class Pages:
    """The part of a `BlockPool` that requests use."""

    __slots__ = (
        *("_blank", "_eviction", "_num_referenced", "_observer", "_reclaimers"),
        *("_refs", "_residents", "block_size", "num_pages"),
    )

    def __init__(
        self,
        num_pages: int,
        block_size: int,
        eviction: BlockEviction | None = None,
        observer: PoolObserver | None = None,
    ) -> None:
        if num_pages < 2 or block_size < 1:
            raise PolicyError(
                f"block pool: {num_pages} pages of {block_size} tokens "
                f"(allowed: 2 or more, page 0 is the null page, of 1 token or more)"
            )
        self.num_pages = num_pages
        self.block_size = block_size
        lru = Lru(capacity=num_pages - 1, clock=lambda: 0.0)
        self._eviction: BlockEviction = lru if eviction is None else eviction
        self._observer: PoolObserver = observer or SilentObserver()
        self._residents = Residents()
        self._refs = [0] * num_pages
        self._blank = list(range(1, num_pages))
        self._num_referenced = 0
        self._reclaimers: list[Callable[[int], object]] = []

    def __repr__(self) -> str:
        return (
            f"<BlockPool [Pages: {self.num_pages - 1} of {self.block_size} tokens, "
            f"{self._num_referenced} referenced, {self.num_cached} registered, "
            f"{len(self._blank)} blank]>"
        )

    @property
    def num_free(self) -> int:
        """Pages that `allocate` can hand out: blank ones and evictable ones."""
        return self.num_pages - 1 - self._num_referenced

    @property
    def num_cached(self) -> int:
        """Pages registered under a hash, referenced or not."""
        return len(self._residents)

    @property
    def num_referenced(self) -> int:
        """Pages in use or held."""
        return self._num_referenced

    @property
    def usage(self) -> float:
        """Share of the pages that are in use or held, from 0 to 1."""
        return self._num_referenced / (self.num_pages - 1)

    @property
    def policy(self) -> BlockEviction:
        """The eviction policy in force."""
        return self._eviction

    def refs(self, page: int) -> int:
        """Count the references to *page*, the pool's own hold included."""
        return self._refs[page]

    def is_shared(self, page: int) -> bool:
        """Tell whether writing into *page* would change what others may read."""
        return self._refs[page] > 1 or page in self._residents.hashes

    def allocate(self, count: int) -> list[int]:
        """Hand out *count* pages with one reference each, all or none.

        Raises:
            PoolExhausted: So many are not free, and reclaimers gave none up.
            PolicyError: The eviction policy gave up too little, or what is in use.
        """
        if count > len(self._blank):
            self._make_room(count)
        pages = [heappop(self._blank) for _ in range(count)]
        for page in pages:
            self._refs[page] = 1
        self._num_referenced += len(pages)
        return pages

    def share(self, pages: Sequence[int], *, is_hit: bool = True) -> None:
        """Add a reference to each page; a cached one is evictable no more.

        Args:
            pages: Referenced or cached ones; `PageMisuse` otherwise.
            is_hit: Whether a request found them by content, which the eviction
                policy counts as use. A fork of a running sequence is none.
        """
        hashes = self._residents.hashes
        for page in pages:
            if page and not self._refs[page] and page not in hashes:
                raise blank_shared(page)
        for page in pages:
            if page == NULL_PAGE:
                continue
            block_hash = hashes.get(page)
            if is_hit and block_hash is not None:
                self._eviction.touched(block_hash)
            self._take(page, block_hash)

    def release(self, pages: Sequence[int]) -> None:
        """Take a reference from each page of a chain, given head first.

        Those without any left become evictable when registered, the tail first, and
        blank otherwise.

        Raises:
            PageMisuse: One is given more often than it is referenced.
        """
        for page, count in Counter(pages).items():
            if page and self._refs[page] < count:
                raise released_twice(page, count, self._refs[page])
        for page in reversed(pages):
            if page != NULL_PAGE:
                self._give_back(page)

    def register(
        self,
        page: int,
        block_hash: int,
        parent_hash: int | None,
        depth: int,
        *,
        prompt_blocks: int = 0,
        turn: int = 1,
    ) -> bool:
        """Make the content of a full page known under its hash.

        When another page in use has the hash already this one stays unregistered and
        turns blank at its release. One that nobody uses gives the hash up, so that
        what a request computes stays cached for as long as it runs.

        Args:
            page: A referenced page, whose content is complete.
            block_hash: Chained hash of the content.
            parent_hash: Hash of the block in front; None for the first.
            depth: Blocks in front of it.
            prompt_blocks: Blocks of the prompt that brought it; 0 when unknown.
            turn: Turn of the conversation that brought it, from 1.

        Returns whether *page* is the one that the hash stands for.

        Raises:
            PageMisuse: It is not referenced, or registered as something else.
        """
        is_known = self._stands_for(page, block_hash)
        other = self._residents.pages.get(block_hash)
        if other is not None:
            return is_known or self._supersede(other, page, block_hash)
        facts = BlockFacts(depth, parent_hash, prompt_blocks, turn)
        self._residents.add(block_hash, page, facts)
        self._eviction.inserted(block_hash, facts)
        self._eviction.held(block_hash)
        self._observer.stored(block_hash, parent_hash, page)
        return True

    def lookup(self, hashes: Sequence[int]) -> list[int]:
        """Return the pages of the longest leading run that is resident.

        Changes nothing: `share` the pages before others are allocated.
        """
        return self._residents.leading_run(hashes)

    def add_reclaimer(self, reclaim: Callable[[int], object]) -> None:
        """Have *reclaim* asked for missing pages before an allocation fails.

        It may release pages and let go of held blocks, but not allocate.
        """
        self._reclaimers.append(reclaim)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every invariant holds. O(pages)."""
        residents, refs = self._residents, self._refs
        residents.check_integrity()
        used = {page for page, count in enumerate(refs) if count}
        blank = set(self._blank)
        every = set(range(1, self.num_pages))
        assert min(refs) >= 0, "negative references"
        assert NULL_PAGE not in used | blank, "the null page is in circulation"
        assert len(used) == self._num_referenced, "references miscounted"
        assert len(blank) == len(self._blank), "a page is blank twice"
        assert not blank & (used | residents.hashes.keys()), "a blank page is in use"
        assert blank | used | residents.hashes.keys() == every, "a page was lost"
        listed = self._eviction.resident()
        assert len(listed) == len(self._eviction) == len(residents), "policy miscounts"
        assert set(listed) == residents.pages.keys(), "policy has other residents"

    def _stands_for(self, page: int, block_hash: int) -> bool:
        """Tell whether *page* has the hash; raises where it must not get it."""
        current = self._residents.hashes.get(page)
        if not self._refs[page] or current not in (None, block_hash):
            state = f"{current:#x} already" if self._refs[page] else "not referenced"
            raise wrong_content(page, block_hash, state)
        return current is not None

    def _supersede(self, other: int, page: int, block_hash: int) -> bool:
        """Register *page* in the place of *other*, unless that one is in use."""
        if self._refs[other]:
            return False
        heappush(self._blank, self._residents.move(block_hash, page))
        self._eviction.touched(block_hash)
        self._eviction.held(block_hash)
        return True

    def _is_used(self, block_hash: int) -> bool:
        return self._refs[self._residents.pages[block_hash]] > 0

    def _take(self, page: int, block_hash: int | None) -> None:
        if not self._refs[page]:
            self._num_referenced += 1
            if block_hash is not None:
                self._eviction.held(block_hash)
        self._refs[page] += 1

    def _give_back(self, page: int) -> None:
        self._refs[page] -= 1
        if self._refs[page]:
            return
        self._num_referenced -= 1
        block_hash = self._residents.hashes.get(page)
        if block_hash is None:
            heappush(self._blank, page)
        else:
            self._eviction.freed(block_hash)

    def _drop(self, block_hash: int) -> int:
        page = self._residents.remove(block_hash)
        heappush(self._blank, page)
        return page

    def _make_room(self, count: int) -> None:
        """Evict until *count* pages are blank."""
        for reclaim in self._reclaimers:
            if count > self.num_free:
                reclaim(count - self.num_free)
        if count > self.num_free:
            raise PoolExhausted(count, self.num_free)
        missing = count - len(self._blank)
        for block_hash in self._eviction.evict(missing) if missing > 0 else ():
            if block_hash not in self._residents.pages or self._is_used(block_hash):
                raise PolicyError(
                    f"eviction {self._eviction.name}: {block_hash:#x} was given up, "
                    f"which is not cached or in use; mend the policy"
                )
            self._observer.removed(block_hash, self._drop(block_hash))
        if count > len(self._blank):
            raise PolicyError(
                f"eviction {self._eviction.name}: {count - len(self._blank)} of "
                f"{missing} victims are missing, though enough are evictable"
            )
