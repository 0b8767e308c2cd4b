"""How many tokens a backend keeps: learned from what it had and had not.

The engine tells the size of its pool, or nothing. What counts for reuse is how many
tokens can go in before a prefix goes out, its *distance*: tokens that were inserted
since the prefix was last used. A reported hit at some distance proves a capacity of at
least that; a miss hints at less. Assuming half the true capacity multiplies the wait in
overload by ten, assuming twice as much adds 3 to 21 per cent (measured by replaying
the Mooncake conversation trace), so the estimate grows at once and shrinks slowly.
"""

from bisect import bisect_right
from typing import Final

_SHRINK: Final = 0.9
_GROW: Final = 1.25
_MAX_OVER_TOLD: Final = 2.0
_MIN_UNDER_TOLD: Final = 0.25
_STRIKES: Final = 3
_MIN_UNTOLD: Final = 32_768
_MAX_SAMPLES: Final = 4096
_MAX_SPAN: Final = 2**27
_WINDOW_HITS: Final = 128
_FULL: Final = 0.8


class Capacity:
    """The learned capacity of one backend, in tokens.

    Attributes:
        told: Tokens that the engine says it has room for.
        limit: Tokens that the backend is believed to keep; None is unbounded.
        volume: Tokens inserted so far: the clock that distances are read from.
    """

    __slots__ = (
        "_grain",
        "_hits",
        "_missed",
        "_reach",
        "_reach_before",
        "_stamps",
        "_strikes",
        "_volumes",
        "limit",
        "told",
        "volume",
    )

    def __init__(self, told: int | None = None) -> None:
        self.told = told
        self.limit: float | None = told
        self.volume = 0
        self._stamps: list[float] = []
        self._volumes: list[int] = []
        self._reach = self._reach_before = -1
        self._grain = 0
        self._hits = 0
        self._strikes = 0
        self._missed = 0

    def __repr__(self) -> str:
        return f"<Capacity [Limit: {self.limit}, told: {self.told}]>"

    def tell(self, told: int) -> None:
        """Take over what the engine says; the same word again changes nothing."""
        if told != self.told:
            self.told = told
            self.limit = told
            self._strikes = 0

    def insert(self, num_tokens: int, stamp: float) -> None:
        """Count tokens that went in at *stamp*. O(1) amortised."""
        if not self._volumes or self.volume - self._volumes[-1] >= self._grain:
            if len(self._stamps) >= _MAX_SAMPLES:
                self._thin()
            self._stamps.append(stamp)
            self._volumes.append(self.volume)
        self.volume += num_tokens

    def volume_at(self, stamp: float) -> int:
        """Return the volume up to and with the insert at *stamp*. O(log n).

        Exact for some thousand inserts, then within a two-thousandth of the span
        that is remembered, which ends far beyond any capacity.
        """
        after = bisect_right(self._stamps, stamp)
        return self._volumes[after] if after < len(self._stamps) else self.volume

    def hit(self, distance: int) -> None:
        """Learn from a prefix that was still there after *distance* tokens."""
        self._hits += 1
        if self._hits % _WINDOW_HITS == 0:
            self._reach_before, self._reach = self._reach, -1
        if distance > self._reach:
            self._reach = distance
        if distance >= self._missed:
            self._strikes = 0
        if self.limit is not None and distance > self.limit:
            self.limit = float(distance)

    def miss(self, distance: int, held: int) -> None:
        """Learn from a prefix that was gone after *distance* tokens.

        A miss nearer than a recent hit has another cause, and teaches nothing. Of
        the others, each third in a row takes a tenth off, down to the distance.

        Args:
            distance: Tokens inserted since it was last used.
            held: Tokens that the view has for this backend, where no limit is known.
        """
        reach = max(self._reach, self._reach_before)
        if distance < reach:
            return
        self._missed = min(distance, self._missed) if self._strikes else distance
        self._strikes += 1
        if self._strikes < _STRIKES:
            return
        self._strikes = 0
        base = self.limit if self.limit is not None else float(held)
        floor = _MIN_UNTOLD if self.told is None else _MIN_UNDER_TOLD * self.told
        lower = max(distance, reach, floor, _SHRINK * base)
        if lower < base:
            self.limit = lower

    def exceed(self, held: int) -> None:
        """Learn that the backend had more than the view, whose *held* tokens are all.

        Only a view that is full can have lost blocks for want of capacity.
        """
        if self.limit is None or held < _FULL * self.limit:
            return
        self._strikes = 0
        self.limit *= _GROW
        if self.told is not None:
            self.limit = min(self.limit, _MAX_OVER_TOLD * self.told)

    def _thin(self) -> None:
        span = 8 * self.limit if self.limit is not None else _MAX_SPAN
        if self.volume - self._volumes[0] > span:
            del self._stamps[: _MAX_SAMPLES // 2]
            del self._volumes[: _MAX_SAMPLES // 2]
        else:
            del self._stamps[1::2]
            del self._volumes[1::2]
            self._grain = max(1, 2 * self._grain)
