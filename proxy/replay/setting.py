"""What a trace is replayed on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """A fleet of equal engines, and how the trace is played to it.

    Attributes:
        backends: How many engines.
        capacity_tokens: Size of the prefix cache of each.
        prefill_rate: Prompt tokens that each computes in a second.
        speed: How much faster than recorded the requests come.
        jitter_s: Recorded seconds by which they come later at most, at random.
        seeds: How often all is played, each time with other random numbers.
    """

    backends: int = 8
    capacity_tokens: int = 1_000_000
    prefill_rate: float = 8000.0
    speed: float = 1.0
    jitter_s: float = 0.0
    seeds: int = 1
