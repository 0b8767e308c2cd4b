"""What answers one request of a client's connection."""

from typing import Protocol


class Work(Protocol):
    """A request being answered."""

    def begin(self) -> None:
        """Start; answers through the connection, sooner or later."""

    def client_gone(self) -> None:
        """Learn that nobody waits for the answer any more."""

    def client_writable(self, writable: bool) -> None:
        """Learn whether the client keeps up with the answer."""

    def expired(self) -> None:
        """Learn that the deadline set on the connection has passed."""

    def interrupted(self) -> None:
        """End now, with an error where the answer's form allows one."""
