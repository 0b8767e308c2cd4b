"""A prompt that was sent to a backend, until its outcome is known."""

from math import ceil
from typing import Final, Protocol

from warmroute.policies.kv.blocks import TEXT_BLOCK_BYTES
from warmroute.proxy.view.lookup import Chain
from warmroute.proxy.view.mirror import Mirror

_ESTIMATE_ERROR: Final = 0.1


class Record(Protocol):
    """What is kept of a request."""

    difference: str | None


class Ticket:
    """A prompt that was entered for one backend, until its outcome is known.

    Attributes:
        mirror: The view of the backend; None when nothing was entered.
        incarnation: That of the backend at the dispatch.
        chains: What was entered, a chain for each piece.
        predicted_tokens: What the view promised.
        entered: Stamp of the dispatch; unique.
        stamp: Stamp of its last use by this request.
        held: Leading blocks of each chain that were there before.
        distance: Tokens that went into the backend since the deepest of them was
            used; None when not known or when that request's answer had not begun.
        announced: Tokens of it that the engine had announced at the dispatch.
        difference: Why an engine that announces its blocks had more or less of them;
            None while it did not.
        doubted: Cached tokens that the engine reported, while nothing explains why
            those are less; else -1. What explains it may still be under way.
        record: Is told of the difference, too.
        is_promise: What was entered is announced by the engine itself, and goes
            again with the request.
    """

    __slots__ = (
        "_bytes_per_token",
        "announced",
        "chains",
        "difference",
        "distance",
        "doubted",
        "entered",
        "held",
        "incarnation",
        "is_promise",
        "mirror",
        "predicted_tokens",
        "record",
        "stamp",
    )

    def __init__(
        self,
        mirror: Mirror | None,
        chains: list[Chain],
        predicted_tokens: int,
        bytes_per_token: float,
        stamp: float,
    ) -> None:
        self.mirror = mirror
        self.incarnation = 0 if mirror is None else mirror.incarnation
        self.chains = chains
        self.predicted_tokens = predicted_tokens
        self.entered = self.stamp = stamp
        self.held: list[int] = []
        self.announced = 0
        self.difference: str | None = None
        self.doubted = -1
        self.record: Record | None = None
        self.distance: int | None = None
        self.is_promise = (
            mirror is not None
            and mirror.source == "events"
            and bool(chains)
            and not chains[0].is_text
        )
        self._bytes_per_token = bytes_per_token

    def __repr__(self) -> str:
        name = self.mirror.name if self.mirror else None
        return f"<Ticket [{name}, predicted: {self.predicted_tokens}]>"

    def blocks_in(self, cached_tokens: int) -> int:
        """Count the blocks of a chain that the engine must have had at least."""
        chain = self.chains[0]
        if not chain.is_text:
            return cached_tokens // chain.tokens
        # Rounded up by a block, so that an estimate never drops what is there.
        return ceil(cached_tokens * self._bytes_per_token / TEXT_BLOCK_BYTES) + 1

    def tolerance(self) -> float:
        """Tokens by which a report may differ from the promise and still agree."""
        block_size = self.mirror.block_size if self.mirror else 1
        if not self.chains or not self.chains[0].is_text:
            return block_size
        estimate = TEXT_BLOCK_BYTES / self._bytes_per_token
        return block_size + estimate + _ESTIMATE_ERROR * self.predicted_tokens
