"""Pages that are being filled for running requests, and are in no table yet."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from warmroute.adapters.vllm.plugin.ports import Block, Pool


class Pages:
    """Hold pages that one call fills for one request, until they are taken over.

    Args:
        name: Of the request.
        pages: What the pool gave out.
    """

    __slots__ = ("_pages", "are_ours", "name")

    def __init__(self, name: str, pages: list[Block]) -> None:
        self.name = name
        self._pages = pages
        self.are_ours = True
        """False once they are in the request's table, or free again."""

    def __repr__(self) -> str:
        return f"<Pages of {self.name} [Pages: {len(self._pages)}]>"

    @property
    def numbers(self) -> list[int]:
        """Their numbers in the pool."""
        return [page.block_id for page in self._pages]

    def take(self) -> Sequence[Block]:
        """Take them over; whoever does lets go of them."""
        self.are_ours = False
        return self._pages


class Filling:
    """Know which pages are being filled, and let go of those of ended requests.

    A call may be left where it is by a caller that went away, so its pages cannot wait
    for it.

    Args:
        pool: Gives them out.
    """

    __slots__ = ("_open", "_pool")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._open: list[Pages] = []

    def __repr__(self) -> str:
        return f"<Filling {self._open!r}>"

    @contextmanager
    def begun(self, name: str, count: int) -> Iterator[Pages]:
        """Get pages from the pool; those that nobody took over are free again after."""
        pages = Pages(name, self._pool.get_new_blocks(count))
        self._open.append(pages)
        try:
            yield pages
        finally:
            if pages in self._open:
                self._open.remove(pages)
            self._let_go(pages)

    def drop_ended(self, is_over: Callable[[str], bool]) -> None:
        """Let go of the pages of requests that are over."""
        for pages in [one for one in self._open if is_over(one.name)]:
            self._open.remove(pages)
            self._let_go(pages)

    def _let_go(self, pages: Pages) -> None:
        if pages.are_ours:
            self._pool.free_blocks(pages.take())
