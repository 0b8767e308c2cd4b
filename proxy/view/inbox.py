"""Messages of one publisher that were received and wait to be put into order."""

from collections import deque

_MAX_MESSAGES = 200_000
_FULL_BYTES = 32 << 20
_MAX_BYTES = 256 << 20


class Inbox:
    """What was received, in the order in which it came, and bounded.

    What does not fit is left out: it is a gap like any other, and asked for again.
    """

    __slots__ = ("_messages", "_num_bytes")

    def __init__(self) -> None:
        self._messages: deque[tuple[int, bytes]] = deque()
        self._num_bytes = 0

    def __repr__(self) -> str:
        return f"<Inbox [{len(self._messages)} messages, {self._num_bytes} bytes]>"

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def is_full(self) -> bool:
        """Tell whether so much waits that more should not come."""
        return self._num_bytes > _FULL_BYTES

    def add(self, seq: int, payload: bytes) -> bool:
        """Take a message; tell whether there was room."""
        num_bytes = self._num_bytes + len(payload)
        if len(self._messages) >= _MAX_MESSAGES or num_bytes > _MAX_BYTES:
            return False
        self._num_bytes = num_bytes
        self._messages.append((seq, payload))
        return True

    def take(self) -> tuple[int, bytes]:
        """Hand out the oldest message."""
        seq, payload = self._messages.popleft()
        self._num_bytes -= len(payload)
        return seq, payload

    def clear(self) -> None:
        """Drop everything."""
        self._messages.clear()
        self._num_bytes = 0
