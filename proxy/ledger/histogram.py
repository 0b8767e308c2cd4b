"""Histograms of plain integers, cheap enough for every token."""

from collections.abc import Sequence
from typing import Final

Bounds = tuple[float, ...]

TTFT_BOUNDS_S: Final[Bounds] = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_BOUNDS_S: Final[Bounds] = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
DURATION_BOUNDS_S: Final[Bounds] = tuple(0.01 * 2**k for k in range(17))
ROUTING_BOUNDS_S: Final[Bounds] = (
    *(10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6),
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 1.0),
)


class Histogram:
    """Count values into fixed buckets.

    A value equal to a bound falls into that bound's bucket, as Prometheus
    counts it. Not thread-safe: one event loop owns it.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count *value*; O(log buckets)."""
        bounds, low, high = self.bounds, 0, len(self.bounds)
        while low < high:  # bisect_left in place: compiled, it boxes nothing
            middle = (low + high) // 2
            if bounds[middle] < value:
                low = middle + 1
            else:
                high = middle
        self.counts[low] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """Return how many values were observed."""
        return sum(self.counts)

    def cumulative(self) -> Sequence[tuple[str, float]]:
        """Return (upper bound, values at or below it), ending with +Inf."""
        total = 0
        rows = []
        for bound, num in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += num
            rows.append(("+Inf" if bound == float("inf") else repr(bound), total))
        return rows

    def __repr__(self) -> str:
        return f"<Histogram count={self.count} sum={self.sum:.6g}>"
