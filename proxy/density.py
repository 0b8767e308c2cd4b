"""Bytes of canonical text per token, learned per model from reported usage.

A ratio of decayed sums, ``(P * prior + bytes) / (P + tokens)``, so that every token
weighs the same and long prompts, where the estimate matters, decide. The decay runs
over tokens, not over requests. The template's own tokens (roles, a default system
prompt) make short prompts look dense; no intercept is fitted, since prompts of one
length leave it undetermined: prompts below one block do not teach, and the rest
weigh by their length, which leaves an error of overhead / length.
"""

from collections.abc import Callable
from math import exp

PRIOR_BYTES_PER_TOKEN = 4.0
PRIOR_TOKENS = 1024.0
HORIZON_TOKENS = 200_000.0
MAX_WEIGHT_TOKENS = HORIZON_TOKENS / 8
MIN_BYTES_PER_TOKEN = 0.5
MAX_BYTES_PER_TOKEN = 16.0
MIN_TEXT_BYTES = 256
MAX_MODELS = 256


class Sums:
    """Decayed sums of one model, and their ratio.

    Attributes:
        rate: Bytes a token; 4.0 before any report.
        last: Number of the report that taught it last.
    """

    __slots__ = ("last", "num_bytes", "num_tokens", "rate")

    def __init__(self) -> None:
        self.num_tokens = PRIOR_TOKENS
        self.num_bytes = PRIOR_TOKENS * PRIOR_BYTES_PER_TOKEN
        self.rate = PRIOR_BYTES_PER_TOKEN
        self.last = 0

    def __repr__(self) -> str:
        return f"<Sums [{self.rate:.2f} bytes a token]>"


class Density:
    """Learn bytes per token of each model; of 256 models at most."""

    __slots__ = ("_known", "_num_reports", "find")

    def __init__(self) -> None:
        self._known: dict[str, Sums] = {}
        self._num_reports = 0
        # What a request keeps between reading and learning: one look-up for both.
        self.find: Callable[[str], Sums | None] = self._known.get

    def __repr__(self) -> str:
        return f"<Density [{len(self._known)} models]>"

    def bytes_per_token(self, model: str | None) -> float:
        """Return the estimate, 4.0 for a model that nothing is known of. O(1)."""
        sums = self.find(model or "")
        return PRIOR_BYTES_PER_TOKEN if sums is None else sums.rate

    def learn(
        self,
        model: str | None,
        text_bytes: int,
        num_tokens: int,
        sums: Sums | None = None,
    ) -> None:
        """Take in one report of the engine; outliers are bounded, not dropped.

        The ratio is clamped to 0.5 ... 16, and one prompt moves the estimate by
        an eighth of the horizon of 200,000 tokens at most. O(1).

        Args:
            sums: What `find` gave for the model, to spare the look-up. Those of a
                model forgotten since teach nobody.
        """
        if text_bytes < MIN_TEXT_BYTES or num_tokens <= 0:
            return
        if sums is None:
            sums = self.find(model or "") or self._admit(model or "")
        ratio = text_bytes / num_tokens
        if ratio > MAX_BYTES_PER_TOKEN:
            ratio = MAX_BYTES_PER_TOKEN
        elif ratio < MIN_BYTES_PER_TOKEN:
            ratio = MIN_BYTES_PER_TOKEN
        weight = num_tokens if num_tokens < MAX_WEIGHT_TOKENS else MAX_WEIGHT_TOKENS
        keep = exp(-weight / HORIZON_TOKENS)
        sums.num_tokens = sums.num_tokens * keep + weight
        sums.num_bytes = sums.num_bytes * keep + ratio * weight
        sums.rate = sums.num_bytes / sums.num_tokens
        self._num_reports += 1
        sums.last = self._num_reports

    def forget(self, model: str) -> None:
        """Return a model to the prior."""
        self._known.pop(model, None)

    def _admit(self, key: str) -> Sums:
        known = self._known
        if len(known) >= MAX_MODELS:
            del known[min(known, key=lambda name: known[name].last)]
        sums = known[key] = Sums()
        return sums
