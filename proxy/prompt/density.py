"""Bytes of canonical text per token, learned per model from reported usage.

A ratio of decayed sums, ``(P * prior + bytes) / (P + tokens)``, so that every token
weighs the same and long prompts, where the estimate matters, decide. The decay runs
over tokens, not over requests: the sums settle at the horizon. The template's own
tokens (roles, a default system prompt) make short prompts look dense; no intercept
is fitted, since prompts of one length leave it undetermined: prompts below one block
do not teach, and the rest weigh by their length, which leaves an error of
overhead / length.
"""

from collections.abc import Callable
from typing import Final

PRIOR_BYTES_PER_TOKEN: Final = 4.0
PRIOR_TOKENS: Final = 1024.0
HORIZON_TOKENS: Final = 200_000.0
MAX_WEIGHT_TOKENS: Final = HORIZON_TOKENS / 8
MIN_BYTES_PER_TOKEN: Final = 0.5
MAX_BYTES_PER_TOKEN: Final = 16.0
MIN_TEXT_BYTES: Final = 256
MAX_MODELS: Final = 256


class Sums:
    """Decayed sums of one model, and their ratio.

    Attributes:
        rate: Bytes a token; 4.0 before any report.
        is_used: It was taught more than once since it was last passed over.
    """

    __slots__ = ("_num_bytes", "_num_tokens", "is_used", "rate")

    def __init__(self) -> None:
        self._num_tokens = PRIOR_TOKENS
        self._num_bytes = PRIOR_TOKENS * PRIOR_BYTES_PER_TOKEN
        self.rate = PRIOR_BYTES_PER_TOKEN
        self.is_used = False

    def __repr__(self) -> str:
        return f"<Sums [{self.rate:.2f} bytes a token]>"

    def learn(self, text_bytes: float, num_tokens: float) -> None:
        """Take in one report of the engine; outliers are bounded, not dropped.

        The ratio is clamped to 0.5 ... 16, and one prompt moves the estimate by
        an eighth of the horizon of 200,000 tokens at most. O(1).
        """
        if text_bytes < MIN_TEXT_BYTES or num_tokens <= 0:
            return
        ratio = text_bytes / num_tokens
        if not (
            MIN_BYTES_PER_TOKEN <= ratio <= MAX_BYTES_PER_TOKEN
            and num_tokens <= MAX_WEIGHT_TOKENS
        ):
            ratio = min(MAX_BYTES_PER_TOKEN, max(MIN_BYTES_PER_TOKEN, ratio))
            num_tokens = min(num_tokens, MAX_WEIGHT_TOKENS)
            text_bytes = ratio * num_tokens
        keep = 1.0 - num_tokens / HORIZON_TOKENS
        self._num_tokens = sum_tokens = self._num_tokens * keep + num_tokens
        self._num_bytes = sum_bytes = self._num_bytes * keep + text_bytes
        self.rate = sum_bytes / sum_tokens
        self.is_used = True


class Density:
    """Learn bytes per token of each model; of 256 models at most.

    Attributes:
        find: Returns the sums of a model by name, None before any report. A request
            keeps them, so that reading and learning need one look-up.
    """

    __slots__ = ("_known", "find")

    def __init__(self) -> None:
        self._known: dict[str, Sums] = {}
        self.find: Callable[[str], Sums | None] = self._known.get

    def __repr__(self) -> str:
        return f"<Density [{len(self._known)} models]>"

    def bytes_per_token(self, model: str | None) -> float:
        """Return the estimate, 4.0 for a model that nothing is known of. O(1)."""
        sums = self.find(model or "")
        return PRIOR_BYTES_PER_TOKEN if sums is None else sums.rate

    def learn(self, model: str | None, text_bytes: int, num_tokens: int) -> None:
        """Take in one report of a model, be it the first. See `Sums.learn`."""
        if text_bytes < MIN_TEXT_BYTES or num_tokens <= 0:
            return
        sums = self.find(model or "")
        if sums is not None:
            sums.learn(text_bytes, num_tokens)
        else:
            sums = self._admit(model or "")
            sums.learn(text_bytes, num_tokens)
            sums.is_used = False

    def forget(self, model: str) -> None:
        """Return a model to the prior; sums that a request keeps teach nobody."""
        self._known.pop(model, None)

    def _admit(self, key: str) -> Sums:
        """Make room by second chance: the oldest goes that was not used again."""
        known = self._known
        while len(known) >= MAX_MODELS:
            oldest = next(iter(known))
            sums = known.pop(oldest)
            if sums.is_used:
                sums.is_used = False
                known[oldest] = sums
        sums = known[key] = Sums()
        return sums
