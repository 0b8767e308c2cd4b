"""The block table: which pages hold the tokens of one sequence, in order."""

from collections.abc import Sequence
from typing import NamedTuple

from warmroute.policies.kv.pool import NULL_PAGE, BlockPool, PageMisuse


class Copy(NamedTuple):
    """Copy page *src* to page *dst* before anything is written."""

    src: int
    dst: int


class BlockTable:
    """Map the token positions of one sequence to the slots of a pool.

    There are exactly as many pages as the tokens need. The last one may be partly
    filled; all others are full, or evicted (the null page). A table owns one
    reference to each of its pages, so `free` it at the end, whatever happened.
    Use it with one pool only.

    Args:
        block_size: Tokens a page, as the pool has it.
    """

    __slots__ = ("block_size", "num_tokens", "pages")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.pages: list[int] = []
        self.num_tokens = 0

    def __repr__(self) -> str:
        return f"<BlockTable [Tokens: {self.num_tokens}, pages: {self.pages}]>"

    def num_missing(self, pool: BlockPool, num_tokens: int) -> int:
        """Count the pages that `reserve` would allocate for *num_tokens* more."""
        total = -(-(self.num_tokens + num_tokens) // self.block_size)
        return total - len(self.pages) + self._must_copy(pool, num_tokens)

    def reserve(self, pool: BlockPool, num_tokens: int) -> list[Copy]:
        """Grow by *num_tokens*, whose slots may be written afterwards.

        `num_tokens` of the table grows at once, and the new positions are those
        from the old value on. When they begin inside a page that others may read,
        the table gets a page of its own in its place (copy-on-write).

        Returns:
            The copy to make before the write, or nothing. Copies of several tables
            are to be made in the order of the calls: a later one may reuse a page
            that an earlier one reads.

        Raises:
            PoolExhausted: Too few pages are free; the table is unchanged.
            PageMisuse: The number is negative.
        """
        if num_tokens < 0:
            raise PageMisuse(
                f"block table: cannot reserve {num_tokens} tokens in {self!r} "
                f"(allowed: 0 or more); truncate it to shrink"
            )
        must_copy = self._must_copy(pool, num_tokens)
        fresh = pool.allocate(self.num_missing(pool, num_tokens))
        copies = []
        if must_copy:
            copies.append(Copy(self.pages[-1], fresh[0]))
            pool.release([self.pages.pop()])
        self.pages += fresh
        self.num_tokens += num_tokens
        return copies

    def adopt(self, pool: BlockPool, pages: Sequence[int], num_tokens: int) -> None:
        """Start from cached pages that hold the first *num_tokens*; shares them.

        Raises:
            PageMisuse: The table is in use, the pages do not fit the tokens, or one
                is blank; nothing is changed.
        """
        if self.pages or -(-num_tokens // self.block_size) != len(pages):
            raise PageMisuse(
                f"block table: cannot adopt {len(pages)} pages for {num_tokens} tokens "
                f"in {self!r} (allowed: an empty table, and as many pages of "
                f"{self.block_size} as the tokens need)"
            )
        pool.share(pages)
        self.pages = list(pages)
        self.num_tokens = num_tokens

    def fork(self, pool: BlockPool) -> "BlockTable":
        """Return a table of the same tokens that shares all pages.

        Whoever of the two writes into the partly filled last page first gets a copy.
        """
        pool.share(self.pages, is_hit=False)
        twin = BlockTable(self.block_size)
        twin.pages = list(self.pages)
        twin.num_tokens = self.num_tokens
        return twin

    def drop(self, pool: BlockPool, index: int) -> None:
        """Evict the full page at *index*; its tokens are gone from attention.

        Raises:
            PageMisuse: It is the partly filled last page, or there is none.
        """
        if not 0 <= index < self.num_tokens // self.block_size:
            raise PageMisuse(
                f"block table: page {index} cannot be dropped from {self!r} "
                f"(allowed: full pages, 0 to {self.num_tokens // self.block_size - 1})"
            )
        pool.release([self.pages[index]])
        self.pages[index] = NULL_PAGE

    def truncate(self, pool: BlockPool, num_tokens: int) -> None:
        """Forget all tokens behind the first *num_tokens*; no effect when fewer.

        Raises:
            PageMisuse: The last page left would be an evicted one, partly filled.
        """
        if num_tokens >= self.num_tokens:
            return
        keep = -(-num_tokens // self.block_size)
        if num_tokens % self.block_size and self.pages[keep - 1] == NULL_PAGE:
            raise PageMisuse(
                f"block table: cannot cut {self!r} to {num_tokens} tokens, inside an "
                f"evicted page (allowed: multiples of {self.block_size} there)"
            )
        pool.release(self.pages[keep:])
        del self.pages[keep:]
        self.num_tokens = num_tokens

    def free(self, pool: BlockPool) -> None:
        """Give all pages back; the table is empty afterwards. Twice does no harm."""
        pool.release(self.pages)
        self.pages = []
        self.num_tokens = 0

    def slot(self, position: int) -> int:
        """Return the slot of the token at *position*: page * block_size + offset.

        Raises:
            PageMisuse: No such token, or its page was evicted.
        """
        page, offset = divmod(position, self.block_size)
        if not 0 <= position < self.num_tokens or self.pages[page] == NULL_PAGE:
            raise PageMisuse(
                f"block table: position {position} has no slot in {self!r}"
            )
        return self.pages[page] * self.block_size + offset

    def _must_copy(self, pool: BlockPool, num_tokens: int) -> bool:
        is_partial = self.num_tokens % self.block_size != 0
        return is_partial and num_tokens > 0 and pool.is_shared(self.pages[-1])
