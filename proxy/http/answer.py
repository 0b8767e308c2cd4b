"""The head of an engine's answer: what the proxy reads, what it passes on."""

from typing import Final

# What ends with this connection, and the id that the proxy writes itself.
_DROPPED = (
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"upgrade",
    b"trailer",
    b"x-request-id",
)
_DROPPED_LINES: Final = tuple(b"\r\n%b:" % name for name in _DROPPED)


class Answer:
    """The head of an engine's answer.

    Args:
        status: Its status, from llhttp.
        raw: Status line and header lines, as received, without the blank line.
        like: An answer whose head is the same but for the number of its length.
    """

    __slots__ = ("body_until_close", "chunked", "content_type", "raw", "status")

    def __init__(self, status: int, raw: bytes, like: "Answer | None" = None) -> None:
        self.status = status
        self.raw = raw
        self.content_type = b""
        self.chunked = self.body_until_close = False
        if like is not None:
            self.content_type = like.content_type
            return
        lower = raw.lower()
        may_have_body = status not in (204, 304)
        self.chunked = may_have_body and b"\r\ntransfer-encoding:" in lower
        self.body_until_close = (
            may_have_body and not self.chunked and b"\r\ncontent-length:" not in lower
        )
        at = lower.find(b"\r\ncontent-type:")
        if at >= 0:
            self.content_type = lower[at + 15 : lower.index(b"\r\n", at + 15)].strip()
        for line in _DROPPED_LINES:
            if line in lower:
                self.raw = _without_dropped(raw)
                break


def _without_dropped(raw: bytes) -> bytes:
    lines = raw.split(b"\r\n")
    named = {
        token.strip().lower()
        for line in lines
        if line[:11].lower() == b"connection:"
        for token in line[11:].split(b",")
    } - {b"content-length", b"transfer-encoding"}
    return b"\r\n".join(
        line
        for line in lines
        if (key := line.partition(b":")[0].lower()) not in _DROPPED and key not in named
    )
