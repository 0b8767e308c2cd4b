"""The budget of actions: so many a minute, and a few at once."""

from collections.abc import Callable

_BURST_SHARE = 1 / 6


class Allowance:
    """A token bucket that holds a sixth of a minute's actions.

    Args:
        per_minute: Actions a minute.
        clock: Monotonic seconds.
    """

    __slots__ = ("_at", "_clock", "_left", "_per_minute", "num_refused")

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at = clock()
        self._per_minute = per_minute
        self._left = self._most
        self.num_refused = 0

    def __repr__(self) -> str:
        return f"<Allowance [{self._left:.1f} of {self._per_minute} a minute]>"

    def configure(self, per_minute: int) -> None:
        """Take over another budget."""
        self._refill()
        self._per_minute = per_minute
        self._left = min(self._left, self._most)

    def take(self) -> bool:
        """Take one action out of the budget; False when it is used up."""
        self._refill()
        if self._left < 1.0:
            self.num_refused += 1
            return False
        self._left -= 1.0
        return True

    @property
    def _most(self) -> float:
        return max(1.0, self._per_minute * _BURST_SHARE)

    def _refill(self) -> None:
        now = self._clock()
        earned = (now - self._at) * self._per_minute / 60.0
        self._left = min(self._left + earned, self._most)
        self._at = now
