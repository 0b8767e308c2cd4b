"""What was sent where in the last minutes."""

from __future__ import annotations

from collections import deque


class SentWindow:
    """Uncached tokens and requests sent to each backend in a sliding window.

    In buckets of a second, so that its size is bounded by the length in seconds
    times the backends, whatever the traffic. Time may not go far back: what is
    added with an older time counts from the newest bucket on. O(1) amortised.

    Args:
        length_s: Seconds that a request counts.
    """

    __slots__ = ("_buckets", "_length_s", "_sums", "requests")

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._buckets: deque[tuple[int, dict[str, list[int]]]] = deque()
        self._sums: dict[str, list[int]] = {}
        self.requests = 0

    def __repr__(self) -> str:
        return f"<SentWindow {self.requests} requests in {self._length_s:g} s>"

    def add(self, name: str, tokens: int, now: float) -> None:
        """Count a request with so many uncached tokens."""
        buckets = self._buckets
        if not buckets or int(now) > buckets[-1][0]:
            buckets.append((int(now), {}))
        for sums in (buckets[-1][1], self._sums):
            one = sums.setdefault(name, [0, 0])
            one[0] += tokens
            one[1] += 1
        self.requests += 1

    def forget(self, now: float) -> None:
        """Drop the buckets that are older than the window."""
        buckets, sums = self._buckets, self._sums
        while buckets and buckets[0][0] <= now - self._length_s:
            for name, (tokens, requests) in buckets.popleft()[1].items():
                one = sums[name]
                one[0] -= tokens
                one[1] -= requests
                self.requests -= requests
                if not one[1]:
                    del sums[name]

    def sent(self, name: str) -> tuple[int, int]:
        """Return the uncached tokens and the requests of a backend."""
        tokens, requests = self._sums.get(name, (0, 0))
        return tokens, requests
