"""What the view keeps of one backend beside its blocks."""

from collections.abc import Callable
from typing import Final

from warmroute.policies.kv.capacity import Capacity
from warmroute.proxy.view.trust import Trust

WasRemoved = Callable[[int, float], bool]

_SILENT_REPORTS: Final = 8


class Mirror:
    """One backend as the view sees it: identity, block size, capacity, trust.

    Attributes:
        name: The backend.
        gpu: Number of its GPU tier in the index.
        holder: Number of the tier that requests are entered in: the GPU, or what is
            promised where the engine announces its blocks itself.
        block_size: Tokens a block of its engine.
        source: Where its blocks come from: ``events``, ``mirror``, or ``none``.
        num_unheard: Requests that were answered before any block was announced.
        trust: How far its promises are believed.
        was_removed: Whether a block was announced to be gone after a stamp.
        capacity: What it is believed to keep.
        incarnation: Counts engine restarts; tickets of an earlier one are void.
        is_believed: Whether its blocks count in a match.
        has_announced: Whether its engine ever announced a block.
        has_hit: Whether its engine ever reported cached tokens.
        in_flight: Stamps of requests whose answer has not begun.
    """

    __slots__ = (
        "_num_silent",
        "block_size",
        "capacity",
        "gpu",
        "has_announced",
        "has_hit",
        "holder",
        "in_flight",
        "incarnation",
        "is_believed",
        "name",
        "num_unheard",
        "source",
        "trust",
        "was_removed",
    )

    def __init__(
        self,
        name: str,
        holder: int,
        block_size: int,
        source: str,
        capacity: Capacity,
    ) -> None:
        self.name = name
        self.gpu = self.holder = holder
        self.block_size = block_size
        self.source = source
        self.capacity = capacity
        self.has_announced = False
        self.num_unheard = 0
        self.trust = Trust()
        self.was_removed: WasRemoved | None = None
        self.incarnation = 0
        self.in_flight: set[float] = set()
        self.has_hit = False
        self._num_silent = 0
        self.is_believed = self._believe()

    def __repr__(self) -> str:
        return f"<Mirror [{self.name}, source: {self.source}, {self.capacity!r}]>"

    def hear(self, cached_tokens: int, predicted_tokens: int) -> None:
        """Take in one report of cached tokens, for or against the cache being on.

        An engine that reports none for 8 promised prompts in a row, and never
        reported any, has it off.
        """
        if cached_tokens:
            self.has_hit, self._num_silent = True, 0
        elif predicted_tokens and not self.has_hit:
            self._num_silent += 1
        self.is_believed = self._believe()

    def restart(self) -> None:
        """Begin a new incarnation: the engine came back with nothing."""
        self.incarnation += 1
        self.in_flight = set()
        self.has_hit = False
        self._num_silent = 0
        self.capacity = Capacity(self.capacity.told)
        self.is_believed = self._believe()

    def _believe(self) -> bool:
        return self.source != "none" and self._num_silent < _SILENT_REPORTS
