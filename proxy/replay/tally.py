"""Sums over the requests of one run."""

from collections.abc import Sequence
from statistics import fmean
from typing import Final

from warmroute.proxy.ledger.tokens import TokenTotals
from warmroute.proxy.replay.figures import Figures, Window, percentile
from warmroute.proxy.replay.served import Served
from warmroute.proxy.replay.setting import TPOT_OBJECTIVE_S, TTFT_OBJECTIVE_S

WINDOW_S: Final = 10.0
"""Length of a window of the imbalance."""


class Tally:
    """Take in what came of each request, and tell the figures.

    Args:
        backends: How many engines.
        ttft_slo_s: Most seconds to the first token that are good.
        tpot_slo_s: Most seconds a token that are good.
    """

    __slots__ = (
        "_durations",
        "_num_good",
        "_num_lost",
        "_prefill",
        "_requests",
        "_totals",
        "_tpot_slo_s",
        "_tpots",
        "_ttft_slo_s",
        "_ttfts",
        "_windows",
    )

    def __init__(
        self,
        backends: int,
        ttft_slo_s: float = TTFT_OBJECTIVE_S,
        tpot_slo_s: float = TPOT_OBJECTIVE_S,
    ) -> None:
        self._ttft_slo_s = ttft_slo_s
        self._tpot_slo_s = tpot_slo_s
        self._requests = [0] * backends
        self._prefill = [0] * backends
        self._ttfts: list[float] = []
        self._tpots: list[float] = []
        self._durations: list[float] = []
        self._num_good = self._num_lost = 0
        self._totals = TokenTotals()
        self._windows: dict[int, _Sums] = {}

    def __repr__(self) -> str:
        return f"<Tally {len(self._ttfts)} requests, {self._totals!r}>"

    def add(self, served: Served, now: float) -> None:
        """Take in a request that came at *now*."""
        backend, tpot_s = served.backend, served.tpot_s
        uncached = served.prompt_tokens - served.cached_tokens
        self._requests[backend] += 1
        self._prefill[backend] += uncached
        self._ttfts.append(served.ttft_s)
        self._durations.append(served.duration_s)
        if tpot_s is not None:
            self._tpots.append(tpot_s)
        if served.ttft_s <= self._ttft_slo_s and (tpot_s or 0.0) <= self._tpot_slo_s:
            self._num_good += 1
        self._totals.add(served.classes)
        window = self._windows.get(int(now // WINDOW_S))
        if window is None:
            window = _Sums(len(self._requests))
            self._windows[int(now // WINDOW_S)] = window
        window.uncached[backend] += uncached
        window.prompt += served.prompt_tokens

    def lose(self) -> None:
        """Take in a request whose answer broke off."""
        self._num_lost += 1

    def figures(self) -> Figures:
        """Return the figures; at least one request must be in."""
        ttfts, durations = sorted(self._ttfts), sorted(self._durations)
        tpots = sorted(self._tpots) or [0.0]
        tokens = self._totals.snapshot()
        windows = self._list_windows()
        return Figures(
            requests=len(ttfts),
            lost=self._num_lost,
            ttft_mean_s=fmean(ttfts),
            ttft_p50_s=percentile(ttfts, 0.5),
            ttft_p90_s=percentile(ttfts, 0.9),
            ttft_p99_s=percentile(ttfts, 0.99),
            tpot_mean_s=fmean(tpots),
            tpot_p99_s=percentile(tpots, 0.99),
            e2e_mean_s=fmean(durations),
            e2e_p99_s=percentile(durations, 0.99),
            hit_ratio=tokens.hit / tokens.prompt,
            paid_twice_ratio=self._totals.paid_twice_ratio,
            imbalance=fmean(window.imbalance for window in windows),
            goodput=self._num_good / (len(ttfts) + self._num_lost),
            backend_requests=tuple(self._requests),
            backend_prefill_tokens=tuple(self._prefill),
            ttft_shape_s=tuple(percentile(ttfts, at / 100) for at in range(101)),
            windows=windows,
        )

    def _list_windows(self) -> tuple[Window, ...]:
        # Every request has an uncached token, so no window with requests is empty.
        return tuple(
            Window(
                number * WINDOW_S,
                1.0 - sum(sums.uncached) / sums.prompt,
                _imbalance(sums.uncached),
            )
            for number, sums in sorted(self._windows.items())
        )


class _Sums:
    """Tokens of the requests that came within one window."""

    __slots__ = ("prompt", "uncached")

    def __init__(self, backends: int) -> None:
        self.uncached = [0] * backends
        self.prompt = 0


def _imbalance(uncached: Sequence[int]) -> float:
    return max(uncached) * len(uncached) / sum(uncached)
