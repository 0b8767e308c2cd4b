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
