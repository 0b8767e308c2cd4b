"""How fast a class of backends works, and how busy a pool of them is."""

from __future__ import annotations

from typing import Final

COLD_RATE: Final = 8000.0
"""Prefill tokens per second assumed of a class that nothing is known of."""

COLD_OUTPUT_TOKENS: Final = 256.0
"""Length of an answer assumed of a pool that nothing is known of."""

WINDOW_S: Final = 60
"""Length of the window over which utilisation is taken."""

_COLD_WEIGHT_S: Final = 1.0  # busy seconds after which a class outweighs its prior
_OUTPUT_GAIN: Final = 0.01
_KEEP: Final = 0.995  # of the sums of depths, a request
_ITL_GAIN: Final = 0.02
_ITL_STEP: Final = 4.0  # one stream may move the scale by this factor at most
_OUTPUT_STEP: Final = 10.0


class Pool:
    """What the backends of one model share: offered work, answer lengths."""

    __slots__ = (
        "_buckets",
        "_depths",
        "_outputs",
        "_second",
        "_sent",
        "_tokens",
        "output_tokens",
        "rate",
    )

    def __init__(self) -> None:
        self.rate = 0.0
        self.output_tokens = COLD_OUTPUT_TOKENS
        self._outputs = 1
        self._buckets = [0] * WINDOW_S
        self._second = 0
        self._sent = 0
        self._tokens = self._depths = 0.0

    def __repr__(self) -> str:
        return (
            f"<Pool {self.rate:.0f} tok/s, {self._sent} tokens in {WINDOW_S} s, "
            f"{self.output_tokens:.0f} tokens an answer>"
        )

    def add_work(self, uncached_tokens: int, now: float) -> None:
        """Count prefill work that was dispatched."""
        if now >= self._second + 1:
            self._advance(int(now))
        self._buckets[self._second % WINDOW_S] += uncached_tokens
        self._sent += uncached_tokens

    def rho(self, now: float) -> float:
        """Return the work of the last 60 s over what 60 s can do."""
        if now >= self._second + 1:
            self._advance(int(now))
        return self._sent / (WINDOW_S * self.rate) if self.rate else 0.0

    @property
    def depth_tokens(self) -> float | None:
        """Return how deep in its prompt a computed token is; None before any.

        An EWMA, like the rates that are learned of the same prompts.
        """
        return self._depths / self._tokens if self._tokens else None

    def learn_depth(self, uncached_tokens: int, matched_tokens: int) -> None:
        """Take in prefill that was sent, behind tokens that were cached."""
        middle = matched_tokens + 0.5 * uncached_tokens
        self._tokens = _KEEP * self._tokens + uncached_tokens
        self._depths = _KEEP * self._depths + middle * uncached_tokens

    def learn_output(self, tokens: int) -> None:
        """Take the length of a finished answer into the expected one.

        The plain mean of the first hundred, then an EWMA of 0.01. One answer
        counts for at most ten times the expected length.
        """
        self._outputs += 1
        gain = 1.0 / self._outputs
        if gain < _OUTPUT_GAIN:
            gain = _OUTPUT_GAIN
        most = _OUTPUT_STEP * self.output_tokens + 100.0
        sample = tokens if tokens < most else most
        self.output_tokens += gain * (sample - self.output_tokens)

    def _advance(self, second: int) -> None:
        behind = second - self._second
        for passed in range(min(behind, WINDOW_S)):
            place = (second - passed) % WINDOW_S
            self._sent -= self._buckets[place]
            self._buckets[place] = 0
        self._second = second


class SpeedClass:
    """What backends of one model, engine and hardware share: their speed.

    The prefill rate F is the busy-time weighted mean of the members, to which
    each member is shrunk. The inter-token latency follows
    ``scale * (base_s + request_s * requests + token_s * context tokens)``;
    only *scale* is learned, and only here, because streams of one backend are
    too few to tell its speed from its load.
    """

    __slots__ = (
        "_itl_samples",
        "base_s",
        "busy",
        "name",
        "pool",
        "prior",
        "rate",
        "request_s",
        "scale",
        "tok",
        "token_s",
    )

    def __init__(self, name: str = "", pool: Pool | None = None) -> None:
        self.name = name
        self.pool = pool if pool is not None else Pool()
        self.rate = self.prior = COLD_RATE
        self.tok = self.busy = 0.0
        self.base_s = 6.5e-3
        self.request_s = 25e-6
        self.token_s = 46e-9
        self.scale = 1.0
        self._itl_samples = 0

    def __repr__(self) -> str:
        return f"<SpeedClass {self.name} {self.rate:.0f} tok/s, itl x{self.scale:.2f}>"

    def set_members(self, tok: float, busy: float) -> None:
        """Set F from the summed tokens and busy seconds of the members."""
        self.tok = tok
        self.busy = busy
        self.rate = (tok + _COLD_WEIGHT_S * self.prior) / (busy + _COLD_WEIGHT_S)

    def remember_rate(self) -> None:
        """Make F of now the prior, so that it outlives members that leave."""
        self.prior = self.rate

    def load_s(self, requests: int, context_tokens: int) -> float:
        """Return the inter-token latency before scaling."""
        return self.base_s + self.request_s * requests + self.token_s * context_tokens

    def itl_s(self, requests: int, context_tokens: int) -> float:
        """Predict the seconds between two tokens of a stream."""
        return self.scale * self.load_s(requests, context_tokens)

    def learn_itl(self, observed_s: float, load_s: float) -> None:
        """Take a finished stream into the scale, by a step of bounded size."""
        self._itl_samples += 1
        gain = max(_ITL_GAIN, 1.0 / self._itl_samples)
        sample = observed_s / load_s
        sample = min(max(sample, self.scale / _ITL_STEP), self.scale * _ITL_STEP)
        self.scale += gain * (sample - self.scale)
