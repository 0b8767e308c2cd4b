"""Who takes an engine's answer, as the connection to the engine sees them."""

from typing import Protocol

from warmroute.proxy.http.answer import Answer


class Sink(Protocol):
    """Who takes the bytes of an answer."""

    def body(self, piece: bytes) -> None:
        """See a piece of the body without its framing, before `data`."""

    def data(self, data: bytes) -> None:
        """Take bytes as received; called with none for a head without a body."""


class Receiver(Protocol):
    """Who takes an engine's answer; one exchange of the data port."""

    def answer_started(self, answer: Answer) -> Sink:
        """Take the head; the body goes to what this returns."""

    def answer_ended(self) -> None:
        """Learn that the answer is complete."""

    def answer_lost(self, reason: str) -> None:
        """Learn that the connection failed before the answer was complete."""
