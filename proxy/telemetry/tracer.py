"""Tracing: which requests are kept, and how their spans leave.

A request that is sampled from the start, by its parent or by the ratio, leaves marks
(`RequestTrace`), and becomes spans at its end. Any other leaves none, unless it is sent
again or turns out to be slow, failed or mispredicted: its marks are then made late.
There is no global tracer provider: a tracer belongs to the application that built it.
"""

import time
from collections.abc import Callable
from typing import Protocol

from opentelemetry.trace import SpanContext

from warmroute.proxy.ledger.decision import Decision
from warmroute.proxy.telemetry.request_trace import RequestTrace
from warmroute.proxy.telemetry.sampling import Sampler
from warmroute.proxy.telemetry.traceparent import parse_traceparent
from warmroute.proxy.telemetry.unusual import Unusual


class HeadFacts(Protocol):
    """What a trace reads of a request's head."""

    @property
    def method(self) -> bytes:
        """The method."""
        ...

    @property
    def path(self) -> str:
        """The path without its query."""
        ...

    @property
    def version(self) -> str:
        """The HTTP version, such as 1.1."""
        ...

    @property
    def fields(self) -> dict[bytes, bytes]:
        """Fields by lower-case name; ``traceparent``, ``user-agent`` among them."""
        ...


class SpanSink(Protocol):
    """Where the spans of ended requests go."""

    def write(self, trace: RequestTrace, kept: str, wall_offset_ns: int) -> None:
        """Queue a trace; drops one when the queue is full, never blocks or raises.

        Args:
            trace: Ended: nothing of it changes any more.
            kept: Why it is kept.
            wall_offset_ns: Turns its times into Unix time.
        """
        ...

    async def close(self, timeout_s: float) -> bool:
        """Flush for at most *timeout_s*; return whether all was sent."""
        ...


class Tracer:
    """Start a trace for each request, and judge it at its end.

    Where tracing is off there is no tracer at all: callers hold ``None``.

    Args:
        sink: Where kept traces go.
        sampler: Which requests are kept, whatever becomes of them.
        unusual: Which of the others are kept; None: none.
        clock: Monotonic seconds, those of the marks.
        wall_ns: Unix time in nanoseconds.
    """

    __slots__ = ("_clock", "_sink", "_wall_ns", "sampler", "unusual")

    def __init__(
        self,
        sink: SpanSink,
        sampler: Sampler,
        unusual: Unusual | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._sink = sink
        self._clock = clock
        self._wall_ns = wall_ns
        self.sampler = sampler
        self.unusual = unusual

    def start(
        self, head: HeadFacts, now: float, peer: bytes = b""
    ) -> RequestTrace | None:
        """Start to take marks of a request that is sampled; None: it is not.

        A client's headers are forwarded as received; of a sampled request only
        ``traceparent`` is replaced, by that of the attempt.

        Args:
            head: The request's head, with the trace headers among its fields.
            now: The request's arrival on the monotonic clock, in seconds.
            peer: The client's address.
        """
        parent = _parent(head)
        trace_id = self.sampler.sample(parent)
        if trace_id is None:
            return None
        return RequestTrace(self, head, peer, parent, trace_id, now)

    def start_late(
        self, head: HeadFacts, arrived_at: float, peer: bytes = b""
    ) -> RequestTrace | None:
        """Start to take marks of one that was not; None: it can not be kept either."""
        if self.unusual is None:
            return None
        return RequestTrace(self, head, peer, _parent(head), None, arrived_at)

    def is_unusual(
        self,
        duration_s: float,
        status: int,
        error_type: str | None,
        decision: Decision,
    ) -> bool:
        """Tell whether a request that was not sampled is to be kept."""
        unusual = self.unusual
        if unusual is None:
            return False
        return unusual.name(duration_s, status, error_type, decision) is not None

    def ended(self, trace: RequestTrace) -> None:
        """Keep an ended trace, or drop it."""
        kept = self._reason(trace)
        if kept is not None:
            trace.settle()
            offset_ns = self._wall_ns() - round(self._clock() * 1e9)
            self._sink.write(trace, kept, offset_ns)

    def _reason(self, trace: RequestTrace) -> str | None:
        if trace.trace_id is not None:
            return self.sampler.name(trace.parent)
        end_s = trace.end_s
        if self.unusual is None or end_s is None:
            return None
        return self.unusual.name(
            end_s - trace.start_s, trace.status, trace.error_type, trace.decision
        )

    async def close(self, timeout_s: float = 3.0) -> bool:
        """Flush and stop within *timeout_s*; return whether all was sent."""
        return await self._sink.close(timeout_s)

    def __repr__(self) -> str:
        return f"<Tracer {self.sampler!r} {self.unusual!r}>"


def _parent(head: HeadFacts) -> SpanContext | None:
    given = head.fields.get(b"traceparent")
    return None if given is None else parse_traceparent(given.decode("latin-1"))
