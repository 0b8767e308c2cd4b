"""How often, and after how long, the blocks of one category are used again."""

_DECAY = 1.0 - 1.0 / 4096
_FIRST_SHARE = 0.5
_FIRST_GAP_S = 60.0
_FIRST_WEIGHT = 16.0


class ReuseTimes:
    """An exponential distribution fitted to the last few thousand uses. O(1).

    Starts from a weak belief, so that a category is not written off by its first
    block.
    """

    __slots__ = ("_gap_s", "_reuses", "_uses")

    def __init__(self) -> None:
        self._uses = _FIRST_WEIGHT
        self._reuses = _FIRST_WEIGHT * _FIRST_SHARE
        self._gap_s = self._reuses * _FIRST_GAP_S

    def __repr__(self) -> str:
        return (
            f"<ReuseTimes [Share: {self.share:.2f}, mean gap: {1 / self.rate:.0f} s]>"
        )

    @property
    def share(self) -> float:
        """Share of uses that are followed by another."""
        return min(0.999, self._reuses / self._uses)

    @property
    def rate(self) -> float:
        """Reuses a second, of those that are still to be reused."""
        return self._reuses / max(self._gap_s, 1e-9)

    def add_use(self) -> None:
        """Count a use, of which it is not yet known whether another follows."""
        self._uses = self._uses * _DECAY + 1.0
        self._reuses *= _DECAY
        self._gap_s *= _DECAY

    def add_reuse(self, gap_s: float) -> None:
        """Count a use that followed one of this category after *gap_s*."""
        self._reuses += 1.0
        self._gap_s += gap_s
