"""How fast a class of backends works, and how busy a pool of them is."""

from __future__ import annotations

from typing import Final

from warmroute.policies.routing.itl_line import ItlLine

COLD_RATE: Final = 8000.0
"""Prefill tokens per second assumed of a class that nothing is known of."""

COLD_OUTPUT_TOKENS: Final = 256.0
"""Length of an answer assumed of a pool that nothing is known of."""

WINDOW_S: Final = 60
"""Length of the window over which utilisation is taken."""

_COLD_WEIGHT_S: Final = 1.0  # busy seconds after which a class outweighs its prior
_OUTPUT_GAIN: Final = 0.01
_KEEP: Final = 0.995  # of the sums of depths, a request
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
    each member is shrunk. The inter-token latency is learned only here, because
    streams of one backend are too few to tell its speed from its load.
    """

    __slots__ = ("busy", "line", "name", "pool", "prior", "rate", "tok")

    def __init__(self, name: str = "", pool: Pool | None = None) -> None:
        self.name = name
        self.pool = pool if pool is not None else Pool()
        self.rate = self.prior = COLD_RATE
        self.tok = self.busy = 0.0
        self.line = ItlLine()

    def __repr__(self) -> str:
        return f"<SpeedClass {self.name} {self.rate:.0f} tok/s, {self.line!r}>"

    def set_members(self, tok: float, busy: float) -> None:
        """Set F from the summed tokens and busy seconds of the members."""
        self.tok = tok
        self.busy = busy
        self.rate = (tok + _COLD_WEIGHT_S * self.prior) / (busy + _COLD_WEIGHT_S)

    def remember_rate(self) -> None:
        """Make F of now the prior, so that it outlives members that leave."""
        self.prior = self.rate
