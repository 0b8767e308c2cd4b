"""The registered pages: content hash to page and back, with what is known of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from warmroute.policies.eviction.base import BlockFacts


@dataclass(frozen=True, slots=True)
class Resident:
    """One registered block, as `BlockPool.snapshot` reports it."""

    block_hash: int
    parent_hash: int | None
    page: int
    refs: int
    """References, the pool's own hold included; 0 means evictable."""
    depth: int
    """Blocks in front of it."""


class Residents:
    """Map hashes to pages, one to one, and know which block has a child.

    Read `pages` and `hashes`, but change them by the methods only. O(1) a block unless
    stated otherwise.
    """

    __slots__ = ("_num_children", "facts", "hashes", "pages")

    def __init__(self) -> None:
        self.pages: dict[int, int] = {}
        """Page of each hash."""
        self.hashes: dict[int, int] = {}
        """Hash of each registered page."""
        self.facts: dict[int, BlockFacts] = {}
        """What is known of each hash."""
        self._num_children: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.pages)

    def add(self, block_hash: int, page: int, facts: BlockFacts) -> None:
        """Register *page*; neither it nor the hash may be registered."""
        self.pages[block_hash] = page
        self.hashes[page] = block_hash
        self.facts[block_hash] = facts
        if facts.parent is not None:
            children = self._num_children
            children[facts.parent] = children.get(facts.parent, 0) + 1

    def move(self, block_hash: int, page: int) -> int:
        """Let *page* stand for a registered hash; return the page that did before."""
        before = self.pages[block_hash]
        del self.hashes[before]
        self.pages[block_hash] = page
        self.hashes[page] = block_hash
        return before

    def remove(self, block_hash: int) -> int:
        """Forget a hash and return its page."""
        page = self.pages.pop(block_hash)
        del self.hashes[page]
        parent = self.facts.pop(block_hash).parent
        if parent is not None:
            self._num_children[parent] -= 1
            if not self._num_children[parent]:
                del self._num_children[parent]
        return page

    def is_leaf(self, block_hash: int) -> bool:
        """Tell whether no registered block is directly behind it."""
        return block_hash not in self._num_children

    def leading_run(self, hashes: Sequence[int]) -> list[int]:
        """Return the pages of the longest leading run that is registered."""
        pages = []
        for block_hash in hashes:
            page = self.pages.get(block_hash)
            if page is None:
                break
            pages.append(page)
        return pages

    def by_depth(self, hashes: Iterable[int]) -> list[int]:
        """List the registered ones of *hashes*, each once, parents first."""
        known = [
            block_hash
            for block_hash in dict.fromkeys(hashes)
            if block_hash in self.pages
        ]
        known.sort(key=lambda block_hash: self.facts[block_hash].depth)
        return known

    def describe(self, block_hash: int, refs: int) -> Resident:
        """Return the row of a snapshot, given the references of the page."""
        facts = self.facts[block_hash]
        page = self.pages[block_hash]
        return Resident(block_hash, facts.parent, page, refs, facts.depth)

    def check_integrity(self) -> None:
        """Raise AssertionError unless the maps agree. O(n)."""
        assert {page: key for key, page in self.pages.items()} == self.hashes
        assert len(self.pages) == len(self.hashes), "a page has two hashes"
        assert self.pages.keys() == self.facts.keys(), "facts of the wrong blocks"
        children: dict[int, int] = {}
        for facts in self.facts.values():
            if facts.parent is not None:
                children[facts.parent] = children.get(facts.parent, 0) + 1
        assert children == self._num_children, "children miscounted"
