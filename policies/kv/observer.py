"""Who hears which blocks become and cease to be cached."""

from typing import Protocol


class PoolObserver(Protocol):
    """Hear which blocks become and cease to be cached, after the fact."""

    def stored(self, block_hash: int, parent_hash: int | None, page: int) -> None:
        """Take note that *page* is registered as *block_hash* now."""
        ...

    def removed(self, block_hash: int, page: int) -> None:
        """Take note that *block_hash* is not cached any more."""
        ...

    def cleared(self) -> None:
        """Take note that nothing is cached any more; no `removed` is sent."""
        ...


class SilentObserver:
    """Ignore everything: the default observer."""

    __slots__ = ()

    def stored(self, block_hash: int, parent_hash: int | None, page: int) -> None:
        """Do nothing."""

    def removed(self, block_hash: int, page: int) -> None:
        """Do nothing."""

    def cleared(self) -> None:
        """Do nothing."""
