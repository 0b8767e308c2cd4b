"""Least squares without negative coefficients, for a handful of unknowns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_MAX_SWEEPS: Final = 20_000
_ENOUGH: Final = 1e-12


def solve_nonnegative(
    gram: Sequence[Sequence[float]],
    target: Sequence[float],
    start: Sequence[float] = (),
) -> list[float]:
    """Return the x >= 0 that minimises x'Gx - 2 t'x.

    By coordinate descent on the normal equations (Franc, Hlavac and Navara 2005),
    which ends at the minimum for every positive semidefinite *gram*. Columns of
    like size make it quick. O(unknowns^2) a sweep, 20,000 sweeps at most.

    Args:
        gram: G, sums of products of the features; symmetric.
        target: t, sums of products of features and values.
        start: Where to begin; zeros if left out.
    """
    size = len(target)
    found = list(start) or [0.0] * size
    for _ in range(_MAX_SWEEPS):
        moved = largest = 0.0
        for row in range(size):
            curve = gram[row][row]
            if curve <= 0.0:
                continue
            slope = target[row]
            for column in range(size):
                slope -= gram[row][column] * found[column]
            before = found[row]
            after = max(0.0, before + slope / curve)
            found[row] = after
            moved = max(moved, abs(after - before))
            largest = max(largest, after)
        if moved <= _ENOUGH * largest:
            break
    return found
