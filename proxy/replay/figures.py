"""The figures of a replay: what users felt, and what it cost."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import sqrt
from statistics import NormalDist, fmean, stdev
from typing import Any, Final, NamedTuple

# Student's t at 97.5 %, from one degree of freedom on.
_T: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)

_OF_THE_FIRST: Final = frozenset({"requests", "windows"})


class Window(NamedTuple):
    """The requests that came within some seconds.

    Attributes:
        start_s: When it began.
        hit_ratio: Cached prompt tokens over all.
        imbalance: The most uncached tokens of an engine over their mean.
    """

    start_s: float
    hit_ratio: float
    imbalance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one run, or the means of several.

    Attributes:
        requests: Requests served.
        lost: Requests whose answer broke off with their engine.
        ttft_mean_s: Mean seconds to the first token.
        ttft_p50_s: Their median.
        ttft_p90_s: Their 90th percentile.
        ttft_p99_s: Their 99th percentile.
        tpot_mean_s: Mean seconds a token of an answer.
        tpot_p99_s: Their 99th percentile.
        e2e_mean_s: Mean seconds to the end of an answer.
        e2e_p99_s: Their 99th percentile.
        hit_ratio: Cached prompt tokens over all.
        paid_twice_ratio: Prompt tokens that were cached somewhere, or had been, and
            were computed nevertheless, over all.
        imbalance: Mean over windows of 10 s of the most uncached tokens that came to
            an engine, over the mean of all engines.
        goodput: Share of the requests that kept to the objectives.
        backend_requests: Requests of each engine.
        backend_prefill_tokens: Uncached tokens of each engine.
        ttft_shape_s: Percentiles of the TTFT, from 0 to 100.
        windows: The windows of the imbalance; of several runs, those of the first.
    """

    requests: int
    lost: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    tpot_mean_s: float
    tpot_p99_s: float
    e2e_mean_s: float
    e2e_p99_s: float
    hit_ratio: float
    paid_twice_ratio: float
    imbalance: float
    goodput: float
    backend_requests: tuple[float, ...]
    backend_prefill_tokens: tuple[float, ...]
    ttft_shape_s: tuple[float, ...]
    windows: tuple[Window, ...]


def mean_figures(runs: Sequence[Figures]) -> Figures:
    """Return the means over *runs* of one trace; one run stays itself."""
    if len(runs) == 1:
        return runs[0]
    means: dict[str, Any] = {}
    for one in fields(Figures):
        values = [getattr(run, one.name) for run in runs]
        if one.name in _OF_THE_FIRST:
            means[one.name] = values[0]
        elif isinstance(values[0], tuple):
            means[one.name] = _mean_of_each(values)
        else:
            means[one.name] = fmean(values)
    return Figures(**means)


def half_width(values: Sequence[float]) -> float | None:
    """Return half the 95 % confidence interval of the mean; None of one value."""
    count = len(values)
    if count < 2:
        return None
    quantile = NormalDist().inv_cdf(0.975)
    if count - 1 <= len(_T):
        quantile = _T[count - 2]
    return quantile * stdev(values) / sqrt(count)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which *share* of *ordered* lies, interpolated."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _mean_of_each(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(fmean(column) for column in zip(*rows, strict=True))
