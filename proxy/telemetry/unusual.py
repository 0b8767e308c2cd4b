"""Which requests are traced whatever the sampler says, once they have ended."""

from warmroute.proxy.ledger.decision import Decision


class Unusual:
    """Tell a slow, failed or mispredicted request from the rest.

    Args:
        slow_s: Seconds from arrival to end that are slow; None: nothing is.
        mispredicted_tokens: By so many the cached tokens that were predicted and
            those that the engine reported may differ; None: by any number.
    """

    __slots__ = ("_mispredicted_tokens", "_slow_s")

    def __init__(
        self, slow_s: float | None = None, mispredicted_tokens: int | None = None
    ) -> None:
        self._slow_s = float("inf") if slow_s is None else slow_s
        self._mispredicted_tokens = mispredicted_tokens or float("inf")

    def __repr__(self) -> str:
        return f"<Unusual {self._slow_s} s, {self._mispredicted_tokens} tokens>"

    def name(
        self,
        duration_s: float,
        status: int,
        error_type: str | None,
        decision: Decision | None,
    ) -> str | None:
        """Return ``failed``, ``slow``, ``mispredicted``, or None."""
        if is_failure(status, error_type):
            return "failed"
        if duration_s >= self._slow_s:
            return "slow"
        if decision is None or (cached := decision.cached_tokens) is None:
            return None
        error = decision.predicted_tokens - cached
        return "mispredicted" if abs(error) >= self._mispredicted_tokens else None


def is_failure(status: int, error_type: str | None) -> bool:
    """Tell whether a request failed by no fault of the client: 5xx, or cut off."""
    return status >= 500 or (error_type is not None and status < 400)
