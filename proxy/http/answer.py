"""The head of an engine's answer: what the proxy reads, what it passes on."""

_HOP_BY_HOP = (
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"upgrade",
    b"trailer",
)
_HOP_BY_HOP_LINES = tuple(b"\r\n%b:" % name for name in _HOP_BY_HOP)


class Answer:
    """The head of an engine's answer.

    Args:
        status: Its status, from llhttp.
        raw: Status line and header lines, as received, without the blank line.
    """

    __slots__ = ("body_until_close", "chunked", "content_type", "raw", "status")

    def __init__(self, status: int, raw: bytes) -> None:
        self.status = status
        lower = raw.lower()
        may_have_body = status not in (204, 304)
        self.chunked = may_have_body and b"\r\ntransfer-encoding:" in lower
        self.body_until_close = (
            may_have_body and not self.chunked and b"\r\ncontent-length:" not in lower
        )
        at = lower.find(b"\r\ncontent-type:")
        self.content_type = b""
        if at >= 0:
            self.content_type = lower[at + 15 : lower.index(b"\r\n", at + 15)].strip()
        self.raw = raw
        for line in _HOP_BY_HOP_LINES:
            if line in lower:
                self.raw = _without_hop_by_hop(raw)
                break


def _without_hop_by_hop(raw: bytes) -> bytes:
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
        if (key := line.partition(b":")[0].lower()) not in _HOP_BY_HOP
        and key not in named
    )
