"""Tables and numbers for a terminal."""

from collections.abc import Sequence
from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_MAX_CELL: Final = 48


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """Return aligned columns.

    Args:
        heads: Their names.
        rows: Their cells.
        texts: How many columns from the left are text; the others are numbers, and
            end flush.
    """
    lines = [heads, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at < texts else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def printable(text: str, most: int = _MAX_CELL) -> str:
    """Return *text* without what a terminal would obey, and not too long.

    Clients choose models' names and request ids: an escape sequence in one must not
    reach the terminal.
    """
    clean = "".join(one if one.isprintable() else "?" for one in text)
    return clean if len(clean) <= most else clean[: most - 3] + "..."


def count(number: int) -> str:
    """Return a count with its thousands apart."""
    return f"{number:,}"


def seconds(value: float | None) -> str:
    """Return a time in the digits that matter, such as 0.12 s."""
    if value is None:
        return "-"
    if 0 < value < 0.01:
        return f"{1000 * value:.1f} ms"
    if 0 < value < 10:
        return f"{value:.2f} s" if value < 1 else f"{value:.1f} s"
    return f"{value:.0f} s"


def milliseconds(value_s: float | None) -> str:
    """Return a short time, such as 21.0 ms."""
    return "-" if value_s is None else f"{1000 * value_s:.1f} ms"


def share(part: float) -> str:
    """Return a ratio as a percentage."""
    return f"{100 * part:.1f} %"


def size(num_bytes: float) -> str:
    """Return bytes in the unit that fits."""
    unit = 0
    while num_bytes >= 1024 and unit < len(_UNITS) - 1:
        num_bytes /= 1024
        unit += 1
    digits = 1 if unit else 0
    return f"{num_bytes:.{digits}f} {_UNITS[unit]}"
