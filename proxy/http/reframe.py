"""Answers whose framing must change on the way: new chunks, or none."""

from warmroute.proxy.http.splice import UsageFilter


class Reframer:
    """Frame an answer's body anew.

    Args:
        chunked: Frame in chunks; else the close of the connection ends the body.
        usage_filter: Drops the usage event that only the proxy asked for.
    """

    __slots__ = ("_filter", "_pieces", "chunked")

    def __init__(self, *, chunked: bool, usage_filter: UsageFilter | None) -> None:
        self.chunked = chunked
        self._filter = usage_filter
        self._pieces: list[bytes] = []

    def feed(self, piece: bytes) -> None:
        """Take a piece of the body, without its old framing."""
        if self._filter is not None:
            piece = self._filter.feed(piece)
        if piece:
            self._pieces.append(piece)

    def take(self) -> bytes:
        """Return what is ready to be passed on."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        return b"%x\r\n%b\r\n" % (len(data), data) if data and self.chunked else data

    def end(self) -> bytes:
        """Return what ends the body."""
        if self._filter is not None and (rest := self._filter.rest()):
            self._pieces.append(rest)
        return self.take() + (b"0\r\n\r\n" if self.chunked else b"")


def without_transfer_encoding(raw: bytes) -> bytes:
    """Drop the Transfer-Encoding line from a head, for clients of HTTP/1.0."""
    return b"\r\n".join(
        line
        for line in raw.split(b"\r\n")
        if line[:18].lower() != b"transfer-encoding:"
    )
