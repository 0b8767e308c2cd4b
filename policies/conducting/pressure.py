"""How fast a pool is written over: what stays unused longer than that is gone."""

from math import exp, inf
from typing import Final

_MEMORY_S: Final = 20.0
_DOWN: Final = 0.85
_UP: Final = 1.03
_LEAST: Final = 0.1


class Pressure:
    """Estimate how long an unused block of one backend lives under LRU.

    Attributes:
        capacity: Tokens that the pool holds; None while unknown.
        held: Tokens in it that are retained and take no part.
    """

    __slots__ = ("_at", "_scale", "_since", "_sum", "capacity", "held")

    def __init__(self) -> None:
        self.capacity: int | None = None
        self.held = 0
        self._sum = 0.0
        self._at = 0.0
        self._scale = 1.0
        self._since: float | None = None

    def __repr__(self) -> str:
        return f"<Pressure on {self.capacity} tokens>"

    def wrote(self, tokens: int, now: float) -> None:
        """Count tokens that were computed, and so were cached."""
        if self._since is None:
            self._since = self._at = now
        self._sum = self._sum * exp((self._at - now) / _MEMORY_S) + tokens
        self._at = now

    def lifetime_s(self, now: float) -> float:
        """Return the seconds in which the pool is written over once."""
        if self.capacity is None or self._since is None:
            return inf
        span = _MEMORY_S * (1.0 - exp((self._since - now) / _MEMORY_S))
        rate = self._sum * exp((self._at - now) / _MEMORY_S) / max(span, 1.0)
        room = self._scale * max(self.capacity - self.held, 0)
        return room / rate if rate > 1e-6 else inf

    def found(self, is_there: bool) -> None:
        """Learn from whether what should be there still was.

        Running requests and what others retain take room as well, and engines may not
        evict in the order of use; the life is scaled to what is met.
        """
        if is_there:
            self._scale = min(self._scale * _UP, 1.0)
        else:
            self._scale = max(self._scale * _DOWN, _LEAST)
