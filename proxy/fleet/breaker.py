"""Circuit breaker of one backend: pure, a table of states and events.

    state      event               next
    closed     failure, count < n  closed
    closed     failure, count = n  open      (closed if it must not open)
    closed     success, progress   closed    (count = 0)
    open       failure             open      (stragglers add nothing)
    open       time is over        half_open (a trial is on offer)
    open       probe passed        half_open (only before the first failed trial)
    half_open  trial taken         half_open (none on offer, for one open time)
    half_open  trial abandoned     half_open (on offer again)
    half_open  failure             open      (twice the time, up to a cap)
    any        success             closed

Success is the head of a good answer. Progress of a running stream is less: it
may be a stream from before, so it closes nothing. A client's own error (4xx,
429) or a cancel is neither; it only gives a trial back. Whether the breaker may
open is the fleet's to say: the last backend that could serve a model is never
taken away, however often it fails.
"""

import random
from collections.abc import Callable
from typing import Literal

State = Literal["closed", "open", "half_open"]

MAX_BACKOFF = 16
JITTER = 0.2


class Breaker:
    """Take a failing backend out of routing, and try it again by one request.

    Args:
        failures: Consecutive failures that open it.
        open_s: Seconds until the first trial; doubles with each failed trial up
            to `MAX_BACKOFF` times, each with up to `JITTER` added at random, so
            that many proxies do not try at once.
        draw: Source of the jitter, uniform in [0, 1).
    """

    __slots__ = ("_backoff", "_draw", "_failures", "_open_s", "count", "state", "until")

    def __init__(
        self,
        failures: int,
        open_s: float,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.state: State = "closed"
        self.count = 0
        self.until = 0.0
        self._failures = failures
        self._open_s = open_s
        self._backoff = 1
        self._draw = draw

    def __repr__(self) -> str:
        return f"<Breaker {self.state} [failures: {self.count}/{self._failures}]>"

    def configure(self, failures: int, open_s: float) -> None:
        """Take over other bounds; they hold from the next failure on."""
        self._failures = failures
        self._open_s = open_s

    def is_calm(self) -> bool:
        """Tell whether it is closed and has no failure to forget."""
        return self.state == "closed" and self.count == 0

    def is_tripping(self) -> bool:
        """Tell whether one more failure would open it."""
        return self.state == "half_open" or self.count + 1 >= self._failures

    def admits(self, now: float) -> bool:
        """Tell whether a request may be sent; changes nothing."""
        return self.state == "closed" or now >= self.until

    def offer(self, now: float) -> bool:
        """Move from open to half-open once its time is over; tell if it did."""
        if self.state != "open" or now < self.until:
            return False
        self.state = "half_open"
        self.until = 0.0
        return True

    def take(self, now: float) -> bool:
        """Take the one trial of the half-open state; False if it is gone.

        A trial that nobody reports on is on offer again after one open time.
        """
        if self.state != "half_open" or now < self.until:
            return False
        self.until = now + self._open_s * self._backoff
        return True

    def abandon(self) -> bool:
        """Give the trial back, if one was taken: it ended without a verdict."""
        if self.state != "half_open" or self.until == 0.0:
            return False
        self.until = 0.0
        return True

    def passed(self) -> bool:
        """Note a passed health probe; tell whether a trial is on offer for it.

        After a failed trial the probe has no say: the backend answers probes
        well and requests badly.
        """
        if self.state != "open" or self._backoff > 1:
            return False
        self.state = "half_open"
        self.until = 0.0
        return True

    def progress(self) -> None:
        """Note that a stream moved on: failures before it are not consecutive."""
        if self.state == "closed":
            self.count = 0

    def succeed(self) -> bool:
        """Note a success; tell whether it closed the breaker."""
        was_closed = self.state == "closed"
        self.state = "closed"
        self.count = 0
        self._backoff = 1
        return not was_closed

    def fail(self, now: float, may_open: bool = True) -> bool:
        """Note a failure; tell whether it opened the breaker.

        Args:
            now: Seconds, monotonic.
            may_open: False leaves it closed: no other backend could serve.
        """
        if self.state == "open":
            return False
        self.count += 1
        if not may_open:
            self.state = "closed"
            return False
        if self.state == "half_open":
            self._backoff = min(self._backoff * 2, MAX_BACKOFF)
        elif self.count < self._failures:
            return False
        self._open(now)
        return True

    def _open(self, now: float) -> None:
        self.state = "open"
        delay_s = self._open_s * self._backoff
        self.until = now + delay_s * (1.0 + JITTER * self._draw())
