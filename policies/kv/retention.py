"""Retention: keep prefixes resident for a while, within a share of the pool."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from warmroute.policies.errors import PolicyError
from warmroute.policies.kv.deadlines import Deadlines


class Holder(Protocol):
    """A pool whose cached blocks can be kept from eviction, such as `BlockPool`."""

    @property
    def num_pages(self) -> int:
        """Pages of the pool, the one that is never given out included."""
        ...

    @property
    def num_held(self) -> int:
        """Blocks held now."""
        ...

    def lookup(self, block_hashes: Sequence[int], /) -> Sequence[object]:
        """Return an entry for each leading resident block of a chain."""
        ...

    def hold(self, block_hashes: Iterable[int], /) -> object:
        """Keep resident blocks from eviction."""
        ...

    def unhold(self, block_hashes: Sequence[int], /) -> int:
        """Let go of blocks, given head first; returns how many were held."""
        ...

    def add_reclaimer(self, reclaim: Callable[[int], int], /) -> None:
        """Have *reclaim* called with the pages missing when the pool runs short."""
        ...


class Retention:
    """Hold blocks in a pool until a deadline, and never too many of them.

    Deadlines are kept by `expire`, which every call makes first, and which the pool
    makes when it runs short; an engine calls it once a step as well. So nothing
    that expired ever stands in the way of a request. O(log n) a block.

    Args:
        pool: Whose blocks to hold; leave its `hold` to this object.
        cap_share: Largest share of the pool's pages that may be held, from 0 to 1.
        clock: Seconds that never go back.
        at_most: Most deadlines that one call looks at; what is due beyond waits for
            the next.

    Raises:
        PolicyError: The share is not one.

    Attributes:
        cap_blocks: Most blocks that may be retained at a time.
    """

    __slots__ = ("_at_most", "_clock", "_deadlines", "_pool", "cap_blocks")

    def __init__(
        self,
        pool: Holder,
        cap_share: float = 0.5,
        *,
        clock: Callable[[], float],
        at_most: int | None = None,
    ) -> None:
        if not 0.0 <= cap_share <= 1.0:
            raise PolicyError(f"retention: cap share {cap_share} (allowed: 0 to 1)")
        self.cap_blocks = int(cap_share * (pool.num_pages - 1))
        self._pool = pool
        self._clock = clock
        self._at_most = at_most
        self._deadlines = Deadlines()
        pool.add_reclaimer(lambda missing: self.expire())

    def __repr__(self) -> str:
        return f"<Retention [Blocks: {len(self._deadlines)} of {self.cap_blocks}]>"

    def __contains__(self, block_hash: int) -> bool:
        self.expire()
        return block_hash in self._deadlines

    @property
    def num_blocks(self) -> int:
        """Blocks retained now."""
        self.expire()
        return len(self._deadlines)

    @property
    def due_s(self) -> float | None:
        """Seconds until something may be due; None while nothing is retained."""
        due = self._deadlines.next_due
        return None if due is None else max(0.0, due - self._clock())

    def retain(self, hashes: Sequence[int], ttl_s: float) -> int:
        """Keep the leading resident blocks of a chain for *ttl_s* seconds.

        As many as the cap allows, head first: a tail without its head is of no use.
        Blocks that are retained already stay until the later of the two deadlines.

        Returns:
            The leading blocks of the chain that are retained now.

        Raises:
            PolicyError: The time is not positive.
        """
        return sum(self.retain_in_slices(hashes, ttl_s, max(1, len(hashes))))

    def retain_in_slices(
        self, hashes: Sequence[int], ttl_s: float, at_once: int
    ) -> Iterator[int]:
        """Do what `retain` does, *at_once* blocks at a time.

        All of them have one deadline, so that the tail is let go first here, too.

        Yields:
            After each slice, how many of its leading blocks are retained now. The
            first slice that is not whole is the last.
        """
        if not ttl_s > 0.0:
            raise PolicyError(f"retention: {ttl_s} seconds (allowed: more than 0)")
        deadline = self._clock() + ttl_s
        for start in range(0, len(hashes), at_once):
            self.expire()
            some = hashes[start : start + at_once]
            num_retained = self._retain(some, start, deadline)
            yield num_retained
            if num_retained < len(some):
                return

    def release(self, hashes: Iterable[int]) -> int:
        """Let go of the named blocks, given head first; returns how many were kept."""
        self.expire()
        kept = [
            block_hash
            for block_hash in dict.fromkeys(hashes)
            if self._deadlines.pop(block_hash) is not None
        ]
        self._pool.unhold(kept)
        return len(kept)

    def expire(self, now: float | None = None) -> int:
        """Let go of what is due at *now*, the time of the clock by default.

        Of a chain that expires together the tail is let go first. O(1) when nothing
        is due.

        Returns:
            The blocks let go.
        """
        if now is None:
            now = self._clock()
        due = self._deadlines.due(now, self._at_most)
        return sum(self._pool.unhold([block_hash]) for block_hash in due)

    def _retain(self, hashes: Sequence[int], start: int, deadline: float) -> int:
        """Keep the leading resident blocks of a slice that begins at depth *start*."""
        num_resident = len(self._pool.lookup(hashes))
        for at, block_hash in enumerate(hashes[:num_resident]):
            known = self._deadlines.get(block_hash)
            if known is None:
                if len(self._deadlines) >= self.cap_blocks:
                    return at
                self._pool.hold([block_hash])
            if known is None or known < deadline:
                self._deadlines.put(block_hash, deadline, start + at)
        return num_resident

    def check_integrity(self) -> None:
        """Raise AssertionError unless every invariant holds. O(n)."""
        assert len(self._deadlines) <= self.cap_blocks, "cap exceeded"
        self._deadlines.check_integrity()
        assert self._pool.num_held == len(self._deadlines), "others hold blocks"
