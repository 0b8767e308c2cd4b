"""Bytes of canonical text per token, learned per model from reported usage.

A ratio of decayed sums, ``(P * prior + bytes) / (P + tokens)``, so that every token
weighs the same and long prompts, where the estimate matters, decide. The decay runs
over tokens, not over requests. The template's own tokens (roles, a default system
prompt) make short prompts look dense; no intercept is fitted, since prompts of one
length leave it undetermined: prompts below one block do not teach, and the rest
weigh by their length, which leaves an error of overhead / length.
"""

from math import exp

PRIOR_BYTES_PER_TOKEN = 4.0
PRIOR_TOKENS = 1024.0
HORIZON_TOKENS = 200_000.0
MAX_WEIGHT_TOKENS = HORIZON_TOKENS / 8
MIN_BYTES_PER_TOKEN = 0.5
MAX_BYTES_PER_TOKEN = 16.0
MIN_TEXT_BYTES = 256
MAX_MODELS = 256


class _Sums:
    """Decayed sums of one model."""

    __slots__ = ("num_bytes", "num_tokens")

    def __init__(self) -> None:
        self.num_tokens = PRIOR_TOKENS
        self.num_bytes = PRIOR_TOKENS * PRIOR_BYTES_PER_TOKEN

    def add(self, num_bytes: float, num_tokens: float) -> None:
        keep = exp(-num_tokens / HORIZON_TOKENS)
        self.num_tokens = self.num_tokens * keep + num_tokens
        self.num_bytes = self.num_bytes * keep + num_bytes


class Density:
    """Learn bytes per token of each model; of 256 models at most."""

    __slots__ = ("_rates", "_sums")

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}
        self._sums: dict[str, _Sums] = {}

    def __repr__(self) -> str:
        return f"<Density [{len(self._rates)} models]>"

    def bytes_per_token(self, model: str | None) -> float:
        """Return the estimate, 4.0 for a model that nothing is known of. O(1)."""
        return self._rates.get(model or "", PRIOR_BYTES_PER_TOKEN)

    def learn(self, model: str | None, text_bytes: int, num_tokens: int) -> None:
        """Take in one report of the engine; outliers are bounded, not dropped.

        The ratio is clamped to 0.5 ... 16, and one prompt moves the estimate by
        an eighth of the horizon of 200,000 tokens at most. O(1).
        """
        if text_bytes < MIN_TEXT_BYTES or num_tokens <= 0:
            return
        ratio = min(
            MAX_BYTES_PER_TOKEN, max(MIN_BYTES_PER_TOKEN, text_bytes / num_tokens)
        )
        weight = min(float(num_tokens), MAX_WEIGHT_TOKENS)
        key = model or ""
        sums = self._admit(key)
        sums.add(ratio * weight, weight)
        self._rates[key] = sums.num_bytes / sums.num_tokens

    def forget(self, model: str) -> None:
        """Return a model to the prior."""
        self._sums.pop(model, None)
        self._rates.pop(model, None)

    def _admit(self, key: str) -> _Sums:
        sums = self._sums.pop(key, None)
        if sums is None:
            if len(self._sums) >= MAX_MODELS:
                oldest = next(iter(self._sums))
                del self._sums[oldest], self._rates[oldest]
            sums = _Sums()
        self._sums[key] = sums
        return sums
