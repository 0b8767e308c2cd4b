"""What the conductor watches: a conversation, or a prefix that many share."""

from collections.abc import Sequence
from typing import Final, Literal

Kind = Literal["retain", "demote", "restore", "replicate"]

_GAIN: Final = 0.2


class Turn:
    """One request that has been answered.

    Args:
        now: Time of its end.
        backend: Who answered.
        tail: Hash of the last full block of its prompt.
        blocks: Full blocks of its prompt.
        block_tokens: Tokens a block.
        seen_blocks: Those at its head that the fleet had been sent before.
        before: Hash of the last of those; None without any.
        ends: Hashes at which an earlier prompt may have ended, the last one first.
        fresh_tokens: Tokens computed for it, those of the answer included.
        cached_tokens: Tokens of its prompt that were cached.
        duration_s: Seconds from its arrival to its end.
        handle: Whatever finds its blocks again; not looked at.
        shared_handle: The same of the blocks seen before.
    """

    __slots__ = (
        *("backend", "before", "block_tokens", "blocks", "cached_tokens"),
        *("duration_s", "ends", "fresh_tokens", "handle", "now", "seen_blocks"),
        *("shared_handle", "tail"),
    )

    def __init__(
        self,
        now: float,
        backend: str,
        tail: int,
        blocks: int,
        block_tokens: int,
        seen_blocks: int,
        before: int | None,
        ends: Sequence[int],
        fresh_tokens: int,
        cached_tokens: int,
        duration_s: float = 0.0,
        handle: object = None,
        shared_handle: object = None,
    ) -> None:
        self.now = now
        self.backend = backend
        self.tail = tail
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.seen_blocks = seen_blocks
        self.before = before
        self.ends = ends
        self.fresh_tokens = fresh_tokens
        self.cached_tokens = cached_tokens
        self.duration_s = duration_s
        self.handle = handle
        self.shared_handle = shared_handle


class Item:
    """A chain of blocks on one backend that may be asked for again.

    Attributes:
        tail: Hash of its last block.
        backend: Where it was used last.
        blocks: Blocks from the head to the tail.
        own_blocks: Those at its end that nobody else is known to use.
        last: Time of its last use.
        at: Bucket of its time away.
        stamp: Counts its uses; what was planned before is void.
        handle: Whatever finds its blocks.
        held_until: When its retention ends; 0 without one.
        notes: Actions on it since its last use, the newest last.
        is_demoted: It was given up, until its next use.
    """

    __slots__ = (
        *("at", "backend", "block_tokens", "blocks", "handle", "held_until"),
        *("is_demoted", "last", "notes", "own_blocks", "stamp", "tail"),
    )

    def __init__(self, turn: Turn, tail: int, blocks: int, own_blocks: int) -> None:
        self.tail = tail
        self.backend = turn.backend
        self.blocks = blocks
        self.own_blocks = own_blocks
        self.block_tokens = turn.block_tokens
        self.last = turn.now
        self.at = 0
        self.stamp = 0
        self.handle: object = None
        self.held_until = 0.0
        self.notes: list[object] = []
        self.is_demoted = False

    @property
    def tokens(self) -> int:
        """Tokens from the head to the tail."""
        return self.blocks * self.block_tokens

    @property
    def own_tokens(self) -> int:
        """Tokens that nobody else is known to use."""
        return self.own_blocks * self.block_tokens

    def used(self, now: float) -> None:
        """Note a use: it is not away any more."""
        self.last = now
        self.at = 0
        self.stamp += 1
        self.is_demoted = False


class Talk(Item):
    """A conversation: its next turn begins with all of its newest prompt.

    Attributes:
        kind: Hash of the prefix that it began with, by which it is compared.
    """

    __slots__ = ("kind",)

    def __init__(self, turn: Turn, kind: int) -> None:
        super().__init__(turn, turn.tail, turn.blocks, turn.blocks - turn.seen_blocks)
        self.kind = kind
        self.handle = turn.handle


class Shared(Item):
    """A prefix that conversations begin with, on one backend.

    Attributes:
        uses: How often it was used here.
        gap_s: Seconds between two uses in the mean.
        duration_s: Seconds that a request with it takes in the mean.
    """

    __slots__ = ("duration_s", "gap_s", "uses")

    def __init__(self, turn: Turn, tail: int) -> None:
        super().__init__(turn, tail, turn.seen_blocks, turn.seen_blocks)
        self.handle = turn.shared_handle
        self.uses = 0
        self.gap_s = 0.0
        self.duration_s = turn.duration_s

    def count(self, turn: Turn) -> None:
        """Take in a use; the plain mean of the first five, then an EWMA of 0.2."""
        self.uses += 1
        if self.uses > 1:
            gain = max(_GAIN, 1.0 / (self.uses - 1))
            self.gap_s += gain * (turn.now - self.last - self.gap_s)
        self.duration_s += _GAIN * (turn.duration_s - self.duration_s)
        self.handle = turn.shared_handle

    @property
    def rate(self) -> float:
        """Uses a second; 0 before the fourth, which may have been chance."""
        return 1.0 / self.gap_s if self.uses >= 4 and self.gap_s > 0.0 else 0.0

    @property
    def concurrency(self) -> float:
        """Requests with it that are under way at a time, in the mean (Little)."""
        return self.rate * self.duration_s


class Wish:
    """Something that should be done to an item, and why."""

    __slots__ = ("backend", "item", "kind", "reason", "stamp", "ttl_s")

    def __init__(self, kind: Kind, item: Item, reason: str, ttl_s: float = 0.0) -> None:
        self.kind: Kind = kind
        self.item = item
        self.backend = item.backend
        self.reason = reason
        self.ttl_s = ttl_s
        self.stamp = item.stamp

    def __repr__(self) -> str:
        return f"<Wish {self.kind} {self.item.tail:016x} on {self.backend}>"
