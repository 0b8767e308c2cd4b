"""Differences between two methods on the same items."""

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000


def difference(values: NDArray[np.float64], base: NDArray[np.float64]) -> str:
    """Return the mean difference with its 95 % interval (bootstrap).

    Args:
        values: One number an item.
        base: The same items by the method compared with.
    """
    paired = values - base
    random = np.random.default_rng(0)
    drawn = random.integers(0, len(paired), (RESAMPLES, len(paired)))
    low, high = np.percentile(paired[drawn].mean(axis=1), [2.5, 97.5])
    return f"{paired.mean():+.3f} [{low:+.3f}, {high:+.3f}]"
