"""Usage on streams whose client did not ask for it: ask, and hide the answer.

The body is not re-serialised: one member is spliced in behind the opening brace, so
every other byte reaches the engine as received.
"""

import msgspec

MAX_EVENT_BYTES = 1 << 18
_MEMBER = b'"stream_options":{"include_usage":true},'


def ask_for_usage(body: bytes) -> bytes:
    """Splice ``stream_options.include_usage`` into a JSON object.

    *body* must be an object with at least one member and without stream_options.
    """
    brace = body.index(b"{") + 1
    return body[:brace] + _MEMBER + body[brace:]


class _Event(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_Event).decode


class UsageFilter:
    """Drop the usage event that the client did not ask for from a stream.

    Bytes are held back only while an event is incomplete.
    """

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open = b""

    def feed(self, piece: bytes) -> bytes:
        """Return the bytes to pass on."""
        stream = self._open + piece
        passing = []
        start = 0
        while True:
            end, length = _blank_line(stream, start)
            if end < 0:
                break
            event = stream[start : end + length]
            if not (b'"usage"' in event and _is_extra(event)):
                passing.append(event)
            start = end + length
        self._open = stream[start:]
        if len(self._open) > MAX_EVENT_BYTES:
            passing.append(self._open)  # the usage event is never so large
            self._open = b""
        return b"".join(passing)

    def rest(self) -> bytes:
        """Return what is left when the stream ends."""
        rest, self._open = self._open, b""
        return rest


def _blank_line(stream: bytes, start: int) -> tuple[int, int]:
    bare = stream.find(b"\n\n", start)
    full = stream.find(b"\r\n\r\n", start)
    if full >= 0 and (bare < 0 or full < bare):
        return full, 4
    return bare, 2


def _is_extra(event: bytes) -> bool:
    at = event.find(b"data:")
    try:
        found = _decode(event[at + 5 :].strip())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return found.choices == [] and bytes(found.usage) != b"null"
