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
    low, high = _interval(paired[_draws(len(paired))].mean(axis=1))
    return f"{paired.mean():+.3f} [{low:+.3f}, {high:+.3f}]"


def ratio(values: NDArray[np.float64], base: NDArray[np.float64]) -> str:
    """Return the ratio of the means with its 95 % interval (bootstrap).

    Draws in which the base has nothing are left out; all of them: no ratio.

    Args:
        values: One number an item, 0 or more.
        base: The same items by the method compared with.
    """
    if not base.any():
        return ""
    drawn = _draws(len(base))
    below = base[drawn].sum(axis=1)
    low, high = _interval(values[drawn].sum(axis=1)[below > 0] / below[below > 0])
    return f"{values.sum() / base.sum():.3f} [{low:.3f}, {high:.3f}]"


def _draws(count: int) -> NDArray[np.int64]:
    return np.random.default_rng(0).integers(0, count, (RESAMPLES, count))


def _interval(means: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.percentile(means, [2.5, 97.5])
