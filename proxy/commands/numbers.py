"""Numbers in arguments, within their bounds."""

import argparse
from collections.abc import Callable
from math import isfinite


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return what reads a whole number from *least*, up to *most* if there is one."""
    allowed = f"from {least}" if most is None else f"from {least} to {most}"

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(
                f"{text[:80]!r} (allowed: a whole number {allowed})"
            )
        return number

    return read


def positive(most: float, unit: str = "") -> Callable[[str], float]:
    """Return what reads a number above 0 and up to *most*."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = 0.0
        if not (isfinite(number) and 0.0 < number <= most):
            raise argparse.ArgumentTypeError(
                f"{text[:80]!r} (allowed: a number above 0, up to {most:g}{unit})"
            )
        return number

    return read
