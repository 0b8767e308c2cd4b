"""Flows: the counters of one model on one backend."""

from warmroute.proxy.histogram import (
    DURATION_BOUNDS_S,
    ITL_BOUNDS_S,
    TTFT_BOUNDS_S,
    Histogram,
)
from warmroute.proxy.tokens import TokenTotals


class Flow:
    """Count what one model does on one backend.

    The data port observes ``inter_token`` itself, a gap at a time; everything
    else is the ledger's.
    """

    __slots__ = (
        *("backend", "cached_tokens", "choices", "codes", "duration"),
        *("first_token", "in_flight", "inter_token", "model", "predicted_tokens"),
        *("prompt_tokens", "tokens", "unreported"),
    )

    def __init__(self, model: str, backend: str) -> None:
        self.model = model
        self.backend = backend
        self.in_flight = 0
        self.choices: dict[tuple[str, str], int] = {}
        self.codes: dict[int, int] = {}
        self.duration = Histogram(DURATION_BOUNDS_S)
        self.first_token = Histogram(TTFT_BOUNDS_S)
        self.inter_token = Histogram(ITL_BOUNDS_S)
        self.prompt_tokens = 0
        self.predicted_tokens = 0
        self.cached_tokens = 0
        self.unreported = 0
        self.tokens = TokenTotals()

    def __repr__(self) -> str:
        done = sum(self.codes.values())
        return (
            f"<Flow {self.model}@{self.backend} done={done} in_flight={self.in_flight}>"
        )
