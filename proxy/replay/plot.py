"""Plots as SVG: lines or points on two axes, nothing from outside."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Final

Point = tuple[float, float]

COLOURS: Final = (
    *("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2"),
    *("#db2777", "#65a30d", "#475569", "#92400e"),
)
_WIDTH: Final = 640
_HEIGHT: Final = 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 12, 44
_MOST_TICKS: Final = 6


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or one point with its name.

    Attributes:
        name: What it is.
        points: Where it goes.
        colour: Place in `COLOURS`.
        is_dashed: Whether it is drawn so.
    """

    name: str
    points: Sequence[Point]
    colour: int
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """Series on two axes.

    Attributes:
        title: What is shown.
        x_label: What goes to the right.
        y_label: What goes up.
        series: The lines, or points where each has but one.
        is_log: Whether the x axis is logarithmic.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    is_log: bool = False

    def svg(self) -> str:
        """Draw it."""
        points = [point for one in self.series for point in one.points]
        x_axis = _Axis([x for x, _ in points], _LEFT, _WIDTH - _RIGHT, self.is_log)
        y_axis = _Axis([y for _, y in points], _HEIGHT - _BOTTOM, _TOP, False)
        parts = [
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
            f'aria-label="{escape(self.title, quote=True)}">',
            *x_axis.grid(is_vertical=True),
            *y_axis.grid(is_vertical=False),
            f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 6}" '
            f'text-anchor="middle">{escape(self.x_label)}</text>',
            f'<text transform="translate(14 {(_TOP + _HEIGHT - _BOTTOM) / 2}) '
            f'rotate(-90)" text-anchor="middle">{escape(self.y_label)}</text>',
        ]
        parts += [_draw(one, x_axis, y_axis) for one in self.series if one.points]
        return "".join([*parts, "</svg>"])


class _Axis:
    """Places of values between two edges of the drawing."""

    __slots__ = ("_high", "_is_log", "_low", "_start", "_stop", "ticks")

    def __init__(
        self, values: Sequence[float], start: float, stop: float, is_log: bool
    ) -> None:
        self._start, self._stop, self._is_log = start, stop, is_log
        if is_log:
            above = [value for value in values if value > 0] or [1.0]
            low, high = floor(log10(min(above))), ceil(log10(max(above)))
            high = max(high, low + 1)
            self._low, self._high = float(low), float(high)
            self.ticks = [10.0**power for power in range(low, high + 1)]
        else:
            step = _step(max(values, default=1.0))
            count = max(1, ceil(max(values, default=1.0) / step - 1e-9))
            self._low, self._high = 0.0, count * step
            self.ticks = [step * number for number in range(count + 1)]

    def place(self, value: float) -> float:
        """Return where *value* is drawn."""
        if self._is_log:
            value = log10(value) if value > 0 else self._low
        share = (value - self._low) / (self._high - self._low)
        return round(self._start + share * (self._stop - self._start), 1)

    def grid(self, is_vertical: bool) -> list[str]:
        """Draw a line and a number at each tick."""
        parts = []
        for tick in self.ticks:
            at = self.place(tick)
            if is_vertical:
                line = f'x1="{at}" x2="{at}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"'
                text = f'x="{at}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle"'
            else:
                line = f'y1="{at}" y2="{at}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}"'
                text = f'x="{_LEFT - 6}" y="{at + 4}" text-anchor="end"'
            parts.append(f'<line class="grid" {line}/><text {text}>{tick:g}</text>')
        return parts


def _draw(one: Series, x_axis: _Axis, y_axis: _Axis) -> str:
    places = [(x_axis.place(x), y_axis.place(y)) for x, y in one.points]
    colour, name = COLOURS[one.colour % len(COLOURS)], escape(one.name)
    if len(places) == 1:
        ((x, y),) = places
        return (
            f'<circle cx="{x}" cy="{y}" r="5" fill="{colour}"><title>{name}</title>'
            f'</circle><text x="{x + 8}" y="{y + 4}">{name}</text>'
        )
    dash = ' stroke-dasharray="5 4"' if one.is_dashed else ""
    line = " ".join(f"{x},{y}" for x, y in places)
    return (
        f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"'
        f"{dash}><title>{name}</title></polyline>"
    )


def _step(most: float) -> float:
    """Return a round step of which few reach *most*."""
    if most <= 0:
        return 1.0
    power: float = 10.0 ** floor(log10(most / _MOST_TICKS))
    for factor in (1, 2, 5):
        if most / (factor * power) <= _MOST_TICKS:
            return factor * power
    return 10 * power
