"""Heads that a client repeats: read once, recognised after that.

A client that keeps its connection sends the same head again and again but for the
body's length. A head equal to one that llhttp and RequestHead have accepted, byte for
byte, with the number of the bytes that follow it as its length, can be nothing else
than that head; so it need not be parsed again.
"""

import re

from warmroute.proxy.http.head import RequestHead

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)(?=\r\n|$)", re.IGNORECASE)


class RepeatedHead:
    """The last head of a connection, ready to be recognised."""

    __slots__ = ("_after", "_before", "head")

    def __init__(self, head: RequestHead, before: bytes, after: bytes) -> None:
        self.head = head
        self._before = before
        self._after = after

    @classmethod
    def learn(
        cls, head: RequestHead, data: bytes, body: bytes
    ) -> "RepeatedHead | None":
        """Learn from *data*, which is one whole request, if it has a plain length."""
        end = data.find(b"\r\n\r\n")
        if len(data) - end - 4 != len(body):
            return None  # chunked, or with line ends before or behind it
        raw = data[:end]
        if not head.keeps_alive or head.version != "1.1" or head.expects_continue:
            return None
        found = _LENGTH.search(raw)
        if found is None or found[1] != b"%d" % len(body):
            return None
        return cls(head, raw[: found.start(1)], raw[found.end(1) :])

    def body_of(self, data: bytes) -> bytes | None:
        """Return the body if *data* is one whole request with this head."""
        end = data.find(b"\r\n\r\n")
        length = len(data) - end - 4
        if end < 0 or data[:end] != b"%b%d%b" % (self._before, length, self._after):
            return None
        return data[end + 4 :]
