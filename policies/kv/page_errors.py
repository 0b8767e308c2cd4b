"""What goes wrong with pages: too few of them, or used against the rules."""

from warmroute.policies.errors import WarmrouteError


class PoolExhausted(WarmrouteError):
    """More pages were asked for than blank and evictable ones are left.

    Args:
        asked: Pages wanted.
        free: Pages that could have been had.
    """

    def __init__(self, asked: int, free: int) -> None:
        super().__init__(
            f"block pool: {asked} pages asked, {free} free; "
            f"wait for requests to end, preempt one, or give the pool more pages"
        )
        self.asked = asked
        self.free = free


class PageMisuse(WarmrouteError):
    """A page was used in a state that does not allow it; nothing was changed."""


def wrong_content(page: int, block_hash: int, state: str) -> PageMisuse:
    """Explain that a page cannot stand for a hash."""
    return PageMisuse(
        f"block pool: page {page} cannot be registered as {block_hash:#x}, "
        f"it is {state} (allowed: a page in use without another content)"
    )


def blank_shared(page: int) -> PageMisuse:
    """Explain that nobody can share what is in a blank page."""
    return PageMisuse(
        f"block pool: page {page} is shared but blank "
        f"(allowed: referenced and cached pages); look it up again"
    )


def released_twice(page: int, count: int, refs: int) -> PageMisuse:
    """Explain that a page has fewer references than are given back."""
    return PageMisuse(
        f"block pool: page {page} is released {count} times at {refs} references; "
        f"release what was allocated or shared, once"
    )
