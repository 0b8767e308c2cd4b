"""Flows: the counters of one model on one backend."""

from warmroute.proxy.ledger.histogram import (
    DURATION_BOUNDS_S,
    ITL_BOUNDS_S,
    TTFT_BOUNDS_S,
    Histogram,
)
from warmroute.proxy.ledger.tokens import Classes, TokenTotals


class Flow:
    """Count what one model does on one backend.

    The data port observes ``inter_token`` itself, a gap at a time; everything
    else is the ledger's. ``choices`` counts the requests sent, by policy and reason.

    Where answers do not report cached tokens the promise stands in for the report.
    ``promised_tokens`` sums such promises and ``unreported_tokens`` their prompts;
    ``owed_tokens`` are those that the engine's counters have shown to be no hits since
    (or, below zero, to be hits): later answers make up for them, so that no class ever
    shrinks.
    """

    __slots__ = (
        *("backend", "cached_tokens", "choices", "codes", "duration"),
        *("first_token", "in_flight", "inter_token", "model", "predicted_tokens"),
        *("owed_tokens", "promised_tokens", "tokens", "unreported"),
        "unreported_tokens",
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
        self.predicted_tokens = 0
        self.cached_tokens = 0
        self.unreported = 0
        self.unreported_tokens = 0
        self.promised_tokens = 0
        self.owed_tokens = 0
        self.tokens = TokenTotals()

    def end(self, status: int, duration_s: float, ttft_s: float | None) -> None:
        """Count the end of a request."""
        self.in_flight -= 1
        try:
            self.codes[status] += 1
        except KeyError:
            self.codes[status] = 1
        self.duration.observe(duration_s)
        if ttft_s is not None:
            self.first_token.observe(ttft_s)

    def count_tokens(
        self, classes: Classes, predicted: int, cached: int | None
    ) -> None:
        """Count the prompt tokens of an answered request.

        Args:
            classes: All of them, by class.
            predicted: Those that the view promised.
            cached: Those that the engine reported as cached, if it did.
        """
        self.predicted_tokens += predicted
        if cached is None:
            self.unreported += 1
            self.unreported_tokens += sum(classes)
            self.promised_tokens += classes[0]
            if self.owed_tokens:
                classes = self._settled(classes)
        else:
            self.cached_tokens += cached
        self.tokens.add(classes)

    def _settled(self, classes: Classes) -> Classes:
        """Return the classes after what is owed was taken from them, or given."""
        hit, cold, evicted, elsewhere, unpredicted = classes
        owed = self.owed_tokens
        if owed > 0:
            moved = min(owed, hit)
            self.owed_tokens = owed - moved
            return hit - moved, cold, evicted, elsewhere, unpredicted + moved
        evicted_less = min(-owed, evicted)
        owed += evicted_less
        elsewhere_less = min(-owed, elsewhere)
        owed += elsewhere_less
        cold_less = min(-owed, cold)
        self.owed_tokens = owed + cold_less
        return (
            hit + evicted_less + elsewhere_less + cold_less,
            cold - cold_less,
            evicted - evicted_less,
            elsewhere - elsewhere_less,
            unpredicted,
        )

    @property
    def prompt_tokens(self) -> int:
        """Return the prompt tokens of answered requests, of all classes."""
        return self.tokens.snapshot().prompt

    def __repr__(self) -> str:
        done = sum(self.codes.values())
        return (
            f"<Flow {self.model}@{self.backend} done={done} in_flight={self.in_flight}>"
        )
