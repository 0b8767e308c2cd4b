"""A trace: which prompts came when, as lengths and block ids."""

from dataclasses import dataclass
from random import Random

from warmroute.policies.errors import ConfigError


class TraceError(ConfigError):
    """A trace cannot be read; the message names file, line and what is wrong."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    Attributes:
        time_s: When it came, in seconds since the first one.
        prompt_tokens: Length of the prompt, at least 1.
        output_tokens: Length of the answer.
        blocks: Ids of the full blocks of the prompt, from its start on; equal ids
            mean equal blocks.
    """

    time_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]


Arrival = tuple[float, TraceRequest]
"""When a request comes in the replay, in seconds, and the request."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in time order, at least one, and the size of their blocks in tokens."""

    name: str
    block_size: int
    requests: tuple[TraceRequest, ...]

    @property
    def prompt_tokens(self) -> int:
        """Sum the prompts of all requests. O(requests)."""
        return sum(request.prompt_tokens for request in self.requests)

    @property
    def duration_s(self) -> float:
        """Return the time from the first request to the last, as recorded."""
        return self.requests[-1].time_s - self.requests[0].time_s

    def arrivals(self, speed: float, jitter_s: float, rng: Random) -> list[Arrival]:
        """Return the requests in the order and at the times of a replay.

        Args:
            speed: How much faster than recorded.
            jitter_s: Each request comes later by U(0, jitter_s) recorded seconds;
                it spreads time stamps that were rounded down.
            rng: Draws the jitter.
        """
        if not jitter_s:
            return [(one.time_s / speed, one) for one in self.requests]
        spread = [
            ((one.time_s + jitter_s * rng.random()) / speed, one)
            for one in self.requests
        ]
        spread.sort(key=lambda arrival: arrival[0])
        return spread
