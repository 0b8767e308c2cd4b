"""The token classes over the last hour, sampled every few seconds."""

from collections import deque
from typing import Final

from warmroute.proxy.ledger.tokens import TokenClasses

STEP_S: Final = 5.0
MAX_SAMPLES: Final = 720

Sample = tuple[float, int, int, int, int, int]
"""Unix time, then the sums of hit, cold, evicted, elsewhere and unpredicted."""


class History:
    """Keep one sample every 5 s for an hour: 720 of them, about 100 kB."""

    __slots__ = ("samples",)

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)

    def __repr__(self) -> str:
        return f"<History [Samples: {len(self.samples)}]>"

    def take(self, now: float, sums: TokenClasses) -> Sample | None:
        """Add a sample when the last one is old enough; return it if so."""
        # A clock that was set back must not stop the history.
        if self.samples and 0 <= now - self.samples[-1][0] < STEP_S - 0.5:
            return None
        sample = (now, *sums)
        self.samples.append(sample)
        return sample
