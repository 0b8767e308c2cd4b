"""Heads that a peer repeats: read once, recognised after that.

A client that keeps its connection sends the same head again and again but for the
body's length, and so does an engine. A head equal to one that llhttp and the proxy
have accepted, byte for byte, with the number of the bytes that follow it as its
length, can be nothing else than that head; so it need not be parsed again.
"""

import re
from typing import Final, Generic, Self, TypeVar

Head = TypeVar("Head")

_LENGTH: Final = re.compile(
    rb"\r\ncontent-length:[ \t]*([0-9]+)(?=\r\n|$)", re.IGNORECASE
)


class RepeatedHead(Generic[Head]):
    """The last head of a connection, ready to be recognised.

    Attributes:
        head: What was read of it.
    """

    __slots__ = ("_after", "_before", "head")

    def __init__(self, head: Head, before: bytes, after: bytes) -> None:
        self.head = head
        self._before = before
        self._after = after

    @classmethod
    def learn(cls, head: Head, data: bytes, length: int) -> Self | None:
        """Learn from *data*, one whole message, if its head has a plain length.

        Args:
            head: What was read of it; must not depend on the length.
            data: The message as received.
            length: Bytes of its body.
        """
        end = data.find(b"\r\n\r\n")
        if len(data) - end - 4 != length:
            return None  # chunked, or with line ends before or behind it
        raw = data[:end]
        found = _LENGTH.search(raw)
        if found is None or found[1] != b"%d" % length:
            return None
        return cls(head, raw[: found.start(1)], raw[found.end(1) :] + b"\r\n\r\n")

    def end_in(self, data: bytes) -> int:
        """Return where the body begins if *data* is one whole message, else 0."""
        end = data.find(b"\r\n\r\n") + 4
        if data.startswith(b"%b%d%b" % (self._before, len(data) - end, self._after)):
            return end
        return 0
