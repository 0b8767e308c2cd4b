"""The newest samples of a backend's prefill speed, and what they prove.

The rate of a backend is shrunk to that of its class, since what looks like a slow
backend mostly is a busy one. Two things must not wait for that: hardware that is
another, and a backend whose speed has changed. Both are judged here by the last
samples without the fastest and slowest of them, so that a stalled stream, a pause of
the engine or a wrong prediction proves nothing.

Of each sample is taken away first what its load explains: the steps of the decodes
beside it, and the attention over what stands before its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Final

SHRINK_S: Final = 150.0
"""K: busy seconds at which a backend's own rate weighs as much as its class's."""

NUM_SAMPLES: Final = 16
"""Samples that are remembered of a backend."""

_MIN_SHRINK_S: Final = 2.0
_MIN_SAMPLES: Final = 4
_MIN_CHANGED: Final = 8
_TRIM: Final = 5  # a fifth of the samples is left out at each end
_DEAD_ZONE: Final = 0.25  # of log speed: less is load that was not accounted for
_SPREAD: Final = 0.5  # of the log speed of one sample
_MOST_BEYOND: Final = 2.0  # so that what is eight times slower is forgotten, too
_CHANGE: Final = 0.34  # of log speed: what makes older samples history
_MERGE: Final = 0.2
_STEP_TOKENS: Final = 8192  # of prefill, at most, in a step of an engine
_ATTENTION_TOKENS: Final = 30_000.0  # context that costs as much as the rest of a token
_MIN_OWN: Final = 0.3


class Sample:
    """The prefill of one request, or of several that ended together.

    Attributes:
        tokens: Uncached tokens.
        busy_s: Seconds that the backend took over them.
        context_tokens: Prompt tokens before the mean one of them.
        decode_s: The part of each step that was the decodes'.
    """

    __slots__ = ("busy_s", "context_tokens", "decode_s", "tokens")

    def __init__(
        self, tokens: int, busy_s: float, context_tokens: float, decode_s: float
    ) -> None:
        self.tokens = tokens
        self.busy_s = busy_s
        self.context_tokens = context_tokens
        self.decode_s = decode_s

    def __repr__(self) -> str:
        return f"<Sample {self.tokens} tokens in {self.busy_s:.3f} s>"

    @property
    def work(self) -> float:
        """Tokens, dearer by the attention over their context."""
        return self.tokens * (1.0 + self.context_tokens / _ATTENTION_TOKENS)

    @property
    def work_s(self) -> float:
        """Seconds without the steps of the decodes beside it."""
        steps = 1 + self.tokens // _STEP_TOKENS
        own = self.busy_s - steps * self.decode_s
        return max(own, _MIN_OWN * self.busy_s, 1e-9)


class Samples:
    """The last 16 samples of one backend, and their speed without outliers."""

    __slots__ = ("_next", "_ring", "busy_s", "count", "has_news", "speed", "tokens")

    def __init__(self) -> None:
        self._ring: list[Sample] = []
        self._next = 0
        self.has_news = False
        self.count = 0
        """Samples behind *speed*."""
        self.speed = 0.0
        """Tokens a second that load does not explain, of the middle samples."""
        self.tokens = 0.0
        """Uncached tokens of the middle samples."""
        self.busy_s = 0.0
        """Seconds of the middle samples."""

    def __repr__(self) -> str:
        return f"<Samples {self.count}, {self.speed:.0f} tokens/s>"

    def add(self, sample: Sample, expected_s: float) -> Sample:
        """Take in a sample; returns the one that stands for it from now on.

        Prompts that one step computes end together: the first of them seems slow,
        the others take no time. They count as one.
        """
        ring = self._ring
        self.has_news = True
        if ring and sample.busy_s < _MERGE * expected_s:
            newest = ring[self._next - 1]
            newest.tokens += sample.tokens
            newest.busy_s += sample.busy_s
            return newest
        if len(ring) < NUM_SAMPLES:
            ring.append(sample)
        else:
            ring[self._next] = sample
        self._next = (self._next + 1) % NUM_SAMPLES
        return sample

    def sum_up(self) -> None:
        """Bring the figures up to date; nothing without news."""
        if not self.has_news:
            return
        self.has_news = False
        ring = sorted((one for one in self._ring if one.tokens > 0), key=_speed)
        self.count = len(ring)
        trim = len(ring) // _TRIM
        middle = ring[trim : len(ring) - trim]
        self.tokens = self.busy_s = work = work_s = 0.0
        for one in middle:
            self.tokens += one.tokens
            self.busy_s += one.busy_s
            work += one.work
            work_s += one.work_s
        self.speed = work / work_s if work_s else 0.0

    def has_changed(self, tok: float, busy: float) -> bool:
        """Tell whether the last samples contradict the sums of all of them."""
        if self.count < _MIN_CHANGED or not (tok > 0 < busy and self.busy_s > 0):
            return False
        return abs(log(self.tokens / self.busy_s * busy / tok)) > _CHANGE


def shrinks(members: Sequence[Samples], fades: Sequence[float]) -> list[float]:
    """Return K for each member of a class: less, the surer it is another speed.

    ``K * 2 ** -z^2``, where z is how many standard errors its speed lies beyond a
    dead zone around the median of the others. O(members * log members).

    Args:
        members: Of one class, summed up.
        fades: What the samples of each still prove, 0 to 1.
    """
    known = sorted(one.speed for one in members if one.count >= _MIN_SAMPLES)
    found = []
    for one, fade in zip(members, fades, strict=True):
        shrink_s = SHRINK_S
        if len(known) > 1 and one.count >= _MIN_SAMPLES and one.speed > 0.0:
            beyond = abs(log(one.speed / _median_beside(known, one.speed)))
            beyond = min(max(0.0, beyond - _DEAD_ZONE) / _SPREAD, _MOST_BEYOND)
            surplus = fade * one.count * beyond * beyond
            shrink_s = max(_MIN_SHRINK_S, SHRINK_S * 0.5 ** min(surplus, 64.0))
        found.append(shrink_s)
    return found


def _median_beside(ordered: Sequence[float], speed: float) -> float:
    """Return the median of *ordered* without one member of *speed*."""
    others = len(ordered) - 1
    own = _place(ordered, speed)
    low, high = (others - 1) // 2, others // 2
    return (
        ordered[low + 1 if low >= own else low]
        + ordered[high + 1 if high >= own else high]
    ) / 2


def _place(ordered: Sequence[float], speed: float) -> int:
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) // 2
        if ordered[middle] < speed:
            low = middle + 1
        else:
            high = middle
    return low


def _speed(sample: Sample) -> float:
    return sample.work / sample.work_s
