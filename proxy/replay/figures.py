"""The figures of a replay: what users felt, and what it cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist, fmean, stdev
from typing import Final

# Student's t at 97.5 %, from one degree of freedom on.
_T: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one run, or the means of several.

    Attributes:
        requests: Requests served.
        ttft_mean_s: Mean seconds to the first token.
        ttft_p50_s: Their median.
        ttft_p90_s: Their 90th percentile.
        ttft_p99_s: Their 99th percentile.
        tpot_mean_s: Mean seconds a token of an answer.
        tpot_p99_s: Their 99th percentile.
        hit_ratio: Cached prompt tokens over all.
        paid_twice_ratio: Prompt tokens that were cached somewhere, or had been, and
            were computed nevertheless, over all.
        imbalance: Mean over windows of 10 s of the most uncached tokens that came to
            an engine, over the mean of all engines.
        goodput: Share of the requests that kept to the objectives.
        backend_requests: Requests of each engine.
        backend_prefill_tokens: Uncached tokens of each engine.
    """

    requests: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    tpot_mean_s: float
    tpot_p99_s: float
    hit_ratio: float
    paid_twice_ratio: float
    imbalance: float
    goodput: float
    backend_requests: tuple[float, ...]
    backend_prefill_tokens: tuple[float, ...]


def mean_figures(runs: Sequence[Figures]) -> Figures:
    """Return the means over *runs* of one trace; one run stays itself."""
    if len(runs) == 1:
        return runs[0]

    def mean(read: Callable[[Figures], float]) -> float:
        return fmean(map(read, runs))

    return Figures(
        runs[0].requests,
        mean(lambda run: run.ttft_mean_s),
        mean(lambda run: run.ttft_p50_s),
        mean(lambda run: run.ttft_p90_s),
        mean(lambda run: run.ttft_p99_s),
        mean(lambda run: run.tpot_mean_s),
        mean(lambda run: run.tpot_p99_s),
        mean(lambda run: run.hit_ratio),
        mean(lambda run: run.paid_twice_ratio),
        mean(lambda run: run.imbalance),
        mean(lambda run: run.goodput),
        _mean_of_each([run.backend_requests for run in runs]),
        _mean_of_each([run.backend_prefill_tokens for run in runs]),
    )


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
