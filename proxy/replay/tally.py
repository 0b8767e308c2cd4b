"""Sums over the requests of one run."""

from statistics import fmean
from typing import Final

from warmroute.proxy.ledger.tokens import TokenTotals
from warmroute.proxy.replay.figures import Figures, percentile
from warmroute.proxy.replay.served import Served

WINDOW_S: Final = 10.0
"""Length of a window of the imbalance."""

TTFT_OBJECTIVE_S: Final = 2.0
TPOT_OBJECTIVE_S: Final = 0.05


class Tally:
    """Take in what came of each request, and tell the figures.

    Args:
        backends: How many engines.
    """

    __slots__ = ("_prefill", "_requests", "_totals", "_tpots", "_ttfts", "_windows")

    def __init__(self, backends: int) -> None:
        self._requests = [0] * backends
        self._prefill = [0] * backends
        self._ttfts: list[float] = []
        self._tpots: list[float] = []
        self._totals = TokenTotals()
        self._windows: dict[int, list[int]] = {}

    def __repr__(self) -> str:
        return f"<Tally {len(self._ttfts)} requests, {self._totals!r}>"

    def add(self, served: Served, now: float) -> None:
        """Take in a request that came at *now*."""
        backend = served.backend
        uncached = served.prompt_tokens - served.cached_tokens
        self._requests[backend] += 1
        self._prefill[backend] += uncached
        self._ttfts.append(served.ttft_s)
        self._tpots.append(served.tpot_s)
        self._totals.add(served.classes)
        window = self._windows.get(int(now // WINDOW_S))
        if window is None:
            window = self._windows[int(now // WINDOW_S)] = [0] * len(self._requests)
        window[backend] += uncached

    def figures(self) -> Figures:
        """Return the figures; at least one request must be in."""
        ttfts, tpots = sorted(self._ttfts), sorted(self._tpots)
        tokens = self._totals.snapshot()
        return Figures(
            len(ttfts),
            fmean(ttfts),
            percentile(ttfts, 0.5),
            percentile(ttfts, 0.9),
            percentile(ttfts, 0.99),
            fmean(tpots),
            percentile(tpots, 0.99),
            tokens.hit / tokens.prompt,
            self._totals.paid_twice_ratio,
            self._imbalance(),
            self._goodput(),
            tuple(self._requests),
            tuple(self._prefill),
        )

    def _imbalance(self) -> float:
        # Every request has an uncached token, so no window with requests is empty.
        return fmean(max(one) * len(one) / sum(one) for one in self._windows.values())

    def _goodput(self) -> float:
        num_good = sum(
            ttft_s <= TTFT_OBJECTIVE_S and tpot_s <= TPOT_OBJECTIVE_S
            for ttft_s, tpot_s in zip(self._ttfts, self._tpots, strict=True)
        )
        return num_good / len(self._ttfts)
