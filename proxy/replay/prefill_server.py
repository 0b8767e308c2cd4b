"""The compute of a simulated engine: one prompt after the other, at one speed."""

from typing import Final

DECODE_TOKEN_S: Final = 0.03
"""Seconds between two tokens of an answer."""


class PrefillServer:
    """A queue in order of arrival.

    Args:
        rate: Prompt tokens per second.
    """

    __slots__ = ("free_at", "rate")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.free_at = 0.0
        """When all that was dispatched so far is computed."""

    def __repr__(self) -> str:
        return f"<PrefillServer free at {self.free_at:.3f} s>"

    def serve(self, tokens: int, now: float) -> float:
        """Queue *tokens* and return the seconds until they are computed."""
        wait_s = self.free_at - now if self.free_at > now else 0.0
        service_s = tokens / self.rate
        self.free_at = now + wait_s + service_s
        return wait_s + service_s
