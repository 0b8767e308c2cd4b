"""The budget curve as an SVG, without a plotting library."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 130, 20, 45
COLOURS = {
    "window": "#b23b3b",
    "sinks": "#c98a1b",
    "h2o": "#2f6fb0",
    "infinigen": "#2e8b57",
}
NAMES = {"window": "window only", "sinks": "4 sinks + window", "h2o": "H2O"}
SHARES = (0.04, 0.1, 0.2, 0.4, 0.7, 1.0)


def write_curve(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Draw perplexity against the budget, both on logarithmic axes."""
    full = next(row["perplexity"] for row in rows if row["share"] == 1)
    top = max(row["perplexity"] for row in rows) * 1.1
    axes = Axes(full * 0.9, top)
    parts = [*axes.frame(), axes.level(full)]
    for at, name in enumerate(COLOURS):
        points = [(r["share"], r["perplexity"]) for r in rows if r["method"] == name]
        parts.append(axes.line(points, COLOURS[name]))
        parts += axes.label(at, NAMES.get(name, "InfiniGen"), COLOURS[name])
    body = "\n".join(parts)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12">\n'
        f"<title>Perplexity against the token budget</title>\n"
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{body}\n</svg>\n'
    )


class Axes:
    """Turn shares and perplexities into places on the picture.

    Args:
        low: Perplexity at the bottom.
        high: Perplexity at the top.
    """

    def __init__(self, low: float, high: float) -> None:
        self._low, self._high = low, high

    def x(self, share: float) -> float:
        """Return the place of a budget."""
        part = math.log(share / SHARES[0]) / math.log(1 / SHARES[0])
        return round(LEFT + part * (WIDTH - LEFT - RIGHT), 1)

    def y(self, perplexity: float) -> float:
        """Return the place of a perplexity."""
        part = math.log(perplexity / self._low) / math.log(self._high / self._low)
        return round(HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM), 1)

    def frame(self) -> list[str]:
        """Draw the axes with their ticks."""
        parts = []
        for share in SHARES:
            x = self.x(share)
            parts.append(
                f'<path d="M{x} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>'
                f'<text x="{x}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
                f"{share:.0%}</text>"
            )
        for value in (10, 12, 15, 20, 30, 50, 80, 120, 200):
            if self._low <= value <= self._high:
                y = self.y(value)
                parts.append(
                    f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#ddd"/>'
                    f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{value}</text>'
                )
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(
            f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">tokens kept (or '
            "fetched) a KV head, share of 1,024</text>"
            f'<text x="16" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 '
            f'16 {HEIGHT / 2})">perplexity, WikiText-2</text>'
        )
        return parts

    def level(self, perplexity: float) -> str:
        """Draw the full cache as a dashed line."""
        y = self.y(perplexity)
        return (
            f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#555" '
            f'stroke-dasharray="5 4"/><text x="{WIDTH - RIGHT + 6}" y="{y + 4}" '
            'fill="#555">full cache</text>'
        )

    def line(self, points: Sequence[tuple[float, float]], colour: str) -> str:
        """Draw one method."""
        places = [(self.x(share), self.y(value)) for share, value in points]
        path = " ".join(f"{x},{y}" for x, y in places)
        dots = "".join(
            f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in places
        )
        line = f'<polyline points="{path}" fill="none" stroke="{colour}" '
        return f'{line}stroke-width="2"/>{dots}'

    def label(self, at: int, name: str, colour: str) -> list[str]:
        """Name a method in the legend."""
        y = TOP + 16 + 18 * at
        return [f'<text x="{WIDTH - RIGHT + 6}" y="{y}" fill="{colour}">{name}</text>']
