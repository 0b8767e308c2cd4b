"""Kept traces that are written together, in the queue of those to be exported."""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, TraceFlags

from warmroute.proxy.telemetry.request_trace import RequestTrace

# All of a lot keeps the loop for less than 1 ms, whatever the length of the bodies.
_MAX_HELD_BYTES: Final = 1 << 16  # of bodies, until they are written
_MAX_WRITTEN_BYTES: Final = 1 << 17  # then a lot is full, so that a post can be cut

_QUEUED: Final = SpanContext(1, 1, False, TraceFlags(TraceFlags.SAMPLED))


class Lot(ReadableSpan):
    """Some kept traces: to the SDK's queue, one span.

    A trace that is one in many finds nothing of the code that writes it in the caches
    of the processor, and leaves nothing there of the code that serves requests. Of
    those that are written together the first one pays for all.

    The loop adds traces; the exporting thread takes the lot. The loop never waits for
    that thread.

    Args:
        size: So many traces make it full; at least 1.
        write: Returns the spans of a trace, as `write_span` writes them; never raises.

    Attributes:
        spans: One after the other, once they are written.
        num_spans: How many they are.
    """

    def __init__(
        self, size: int, write: Callable[[RequestTrace, str, int], Sequence[bytes]]
    ) -> None:
        self._lock = threading.Lock()
        self._room = size
        self._write = write
        self._unwritten: list[tuple[RequestTrace, str, int]] = []
        self._held_bytes = 0
        self.spans = b""
        self.num_spans = 0

    def add(self, trace: RequestTrace, kept: str, wall_offset_ns: int) -> bool:
        """Take a trace in; False when the lot is full, or taken.

        What is held is written when the lot is full or its bodies are large.

        Args:
            trace: Ended: nothing of it changes any more.
            kept: Why it is kept.
            wall_offset_ns: Turns its times into Unix time.
        """
        if not self._lock.acquire(blocking=False):
            return False  # it is being taken
        try:
            if not self._room:
                return False
            self._room -= 1
            self._unwritten.append((trace, kept, wall_offset_ns))
            self._held_bytes += _num_bytes(trace)
            if not self._room or self._held_bytes > _MAX_HELD_BYTES:
                self._settle()
        finally:
            self._lock.release()
        return True

    def take(self) -> None:
        """Write what is still to be written; nothing is added any more."""
        with self._lock:
            self._room = 0
            self._settle()

    def _settle(self) -> None:
        """Write the spans of what is held, and let go of the requests."""
        spans = [span for held in self._unwritten for span in self._write(*held)]
        self._unwritten.clear()
        self._held_bytes = 0
        self.spans += b"".join(spans)
        self.num_spans += len(spans)
        if len(self.spans) > _MAX_WRITTEN_BYTES:
            self._room = 0

    @property
    def context(self) -> SpanContext:
        """Return one that is sampled: all that the queue looks at."""
        return _QUEUED

    def __repr__(self) -> str:
        return f"<Lot {len(self._unwritten)} unwritten, {self.num_spans} spans>"


def _num_bytes(trace: RequestTrace) -> int:
    usage = trace.usage
    return len(trace.body) + (0 if usage is None else len(usage.ending))
