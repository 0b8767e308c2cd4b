"""A replay as one page with plots, which asks nothing of the network."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from warmroute.policies.errors import ConfigError
from warmroute.proxy.replay.comparison import Outcome
from warmroute.proxy.replay.figures import Window
from warmroute.proxy.replay.plot import COLOURS, Plot, Point, Series
from warmroute.proxy.replay.report import Report

_MOST_POINTS: Final = 120
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1f2937; --faint: #d1d5db; --back: #fff }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e5e7eb; --faint: #374151; --back: #111827 }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--back); margin: 2rem auto; max-width: 86rem; padding: 0 1rem }
pre { overflow-x: auto; font-size: 13px }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(28rem, 1fr));
  gap: 1.5rem }
figure { margin: 0 } figcaption { font-weight: 600 }
svg { width: 100% } svg text { font-size: 11px; fill: var(--ink) }
.grid { stroke: var(--faint); stroke-width: 1 }
.key span { display: inline-block; margin-right: 1.2em }
.key i { display: inline-block; width: 1.2em; height: .35em; margin-right: .4em;
  vertical-align: middle }
"""


def write_page(file: str, report: Report) -> None:
    """Write the page of *report* to *file*.

    Raises:
        ConfigError: It cannot be written.
    """
    try:
        Path(file).write_text(page(report), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--report: {file} cannot be written: {error.strerror}"
        ) from error


def page(report: Report) -> str:
    """Return the page: the table, then the plots."""
    figures = "".join(
        f"<figure><figcaption>{escape(plot.title)}</figcaption>{plot.svg()}</figure>"
        for plot in _plots(report.outcomes)
    )
    keys = "".join(
        f'<span><i style="background:{COLOURS[at % len(COLOURS)]}"></i>'
        f"{escape(outcome.name)}</span>"
        for at, outcome in enumerate(report.outcomes)
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>warmroute replay: {escape(report.title)}</title>"
        f"<style>{_STYLE}</style></head><body><h1>warmroute replay</h1>"
        f"<pre>{escape(report.as_text())}</pre>"
        f'<p class="key">{keys}</p><div class="plots">{figures}</div></body></html>\n'
    )


def _plots(outcomes: Sequence[Outcome]) -> list[Plot]:
    ordered = list(enumerate(outcomes))
    return [
        Plot(
            "Time to first token: share of requests that waited no longer",
            "TTFT, s",
            "share of requests",
            [_line(at, one, _shape(one)) for at, one in ordered],
            is_log=True,
        ),
        Plot(
            "Time to first token against time per token",
            "mean TTFT, s",
            "mean TPOT, ms",
            [
                _line(
                    at,
                    one,
                    [(one.figures.ttft_mean_s, 1000 * one.figures.tpot_mean_s)],
                )
                for at, one in ordered
            ],
        ),
        Plot(
            "Hit ratio over time",
            "s",
            "cached prompt tokens",
            [_line(at, one, _over_time(one, "hit_ratio")) for at, one in ordered],
        ),
        Plot(
            "Imbalance over time",
            "s",
            "busiest engine over mean",
            [_line(at, one, _over_time(one, "imbalance")) for at, one in ordered],
        ),
    ]


def _line(at: int, outcome: Outcome, points: Sequence[Point]) -> Series:
    return Series(outcome.name, points, at, outcome.name.startswith("oracle_"))


def _shape(outcome: Outcome) -> list[Point]:
    shape = outcome.figures.ttft_shape_s
    return [(ttft_s, at / (len(shape) - 1)) for at, ttft_s in enumerate(shape)]


def _over_time(outcome: Outcome, name: str) -> list[Point]:
    """Return a figure of the windows, means of neighbours where they are many."""
    windows: Sequence[Window] = outcome.figures.windows
    size = -(-len(windows) // _MOST_POINTS)
    points = []
    for start in range(0, len(windows), size):
        some = windows[start : start + size]
        values = [getattr(window, name) for window in some]
        points.append((some[0].start_s, sum(values) / len(values)))
    return points
