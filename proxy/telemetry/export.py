"""Export of kept traces by OTLP; needs the ``otel`` extra, or ``otel-grpc``."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.trace import SpanContext, TraceFlags

from warmroute.proxy.telemetry.collector import GRPC, Collector
from warmroute.proxy.telemetry.request_trace import RequestTrace
from warmroute.proxy.telemetry.span_batch import Origin, SpanBatch
from warmroute.proxy.telemetry.span_message import write_span
from warmroute.proxy.telemetry.span_tree import SpanTree
from warmroute.proxy.telemetry.telling import Telling

_MAX_POSTED_BYTES = 2 << 20
_QUEUED = SpanContext(1, 1, False, TraceFlags(TraceFlags.SAMPLED))

# A trace that is one in many finds nothing of the code that writes it in the caches of
# the processor, and leaves nothing there of the code that serves requests. Written in
# lots the first one pays for all; so many keep the loop for less than 1 ms.
_LOT = 16
_MAX_HELD_BYTES = 1 << 16  # of a request's bodies, until its lot is written

logger = logging.getLogger(__name__)


class WatchedExporter(SpanExporter):
    """Report once when a collector fails, and once when it is back."""

    __slots__ = ("_exporter", "_is_down", "lost")

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._is_down = False
        self.lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export *spans*; called by the processor's thread."""
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            if self._is_down:
                logger.info("trace_export_recovered", extra={"lost_spans": self.lost})
            self._is_down = False
            return result
        self.lost += len(spans)
        if not self._is_down:
            told = self._exporter
            where = told if isinstance(told, Telling) else Telling()
            facts = {"endpoint": where.endpoint, "reason": where.failure}
            logger.warning(
                "trace_export_failed", extra={**facts, "lost_spans": self.lost}
            )
        self._is_down = True
        return result

    def shutdown(self) -> None:
        """Close the exporter; a retry that waits is cut short."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the exporter."""
        return self._exporter.force_flush(timeout_millis)


def open_exporter(collector: Collector) -> SpanExporter:
    """Return what speaks the collector's protocol; connects on the first export.

    Raises:
        ImportError: The extra that speaks it is not installed.
    """
    if collector.protocol == GRPC:
        from warmroute.proxy.telemetry.grpc_exporter import GrpcExporter

        return GrpcExporter(endpoint=collector.url)
    from warmroute.proxy.telemetry.http_exporter import HttpExporter

    return HttpExporter(endpoint=collector.url)


class KeptTrace(ReadableSpan):
    """A trace in the SDK's queue, whose spans are still to be written.

    Args:
        write: Returns them, as `write_span` writes them; called once, by any thread.

    Attributes:
        spans: One after the other, once they are written.
        num_spans: How many they are.
    """

    def __init__(self, write: Callable[[], Sequence[bytes]]) -> None:
        self._write: Callable[[], Sequence[bytes]] | None = write
        self._lock = threading.Lock()
        self.spans = b""
        self.num_spans = 0

    def settle(self) -> None:
        """Write the spans, if that is not done, and let go of the request."""
        with self._lock:
            if self._write is not None:
                write, self._write = self._write, None
                spans = write()
                self.spans, self.num_spans = b"".join(spans), len(spans)

    @property
    def context(self) -> SpanContext:
        """Return one that is sampled: all that the queue looks at."""
        return _QUEUED


class TracePoster(SpanExporter):
    """Turn kept traces into batches of spans, and hand them on.

    Args:
        exporter: Gets the batches.
        origin: Who sends them.
    """

    __slots__ = ("_exporter", "_origin")

    def __init__(self, exporter: SpanExporter, origin: Origin) -> None:
        self._exporter = exporter
        self._origin = origin

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export all spans of the kept traces; called by the processor's thread."""
        result = SpanExportResult.SUCCESS
        queued = [kept for kept in spans if isinstance(kept, KeptTrace)]
        for kept in queued:
            kept.settle()
        for traces in _posts([kept for kept in queued if kept.num_spans]):
            num_spans = sum(kept.num_spans for kept in traces)
            written = [kept.spans for kept in traces]
            sent = self._exporter.export(SpanBatch(self._origin, written, num_spans))
            if sent is not SpanExportResult.SUCCESS:
                result = sent
        return result

    def shutdown(self) -> None:
        """Close the exporter; a retry that waits is cut short."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the exporter."""
        return self._exporter.force_flush(timeout_millis)


class OtlpSink:
    """Queue kept traces for a thread that posts them in batches.

    The queue is bounded (OTEL_BSP_MAX_QUEUE_SIZE) and drops the oldest traces: a
    dead collector costs traces, never requests.

    Args:
        exporter: Sends what is queued.
        tree: Tells the spans of a trace.
        version: Version of warmroute, for the resource and the scope.
    """

    __slots__ = ("_exporter", "_is_broken", "_processor", "_tree", "_unwritten")

    def __init__(self, exporter: SpanExporter, tree: SpanTree, version: str) -> None:
        # The SDK logs every failed batch and every dropped span; the watched
        # exporter says the same once.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        watched = WatchedExporter(exporter)
        self._tree = tree
        self._is_broken = False
        self._unwritten: list[KeptTrace] = []
        self._exporter = TracePoster(watched, Origin(version))
        self._processor = BatchSpanProcessor(self._exporter)

    def write(self, trace: RequestTrace, kept: str, wall_offset_ns: int) -> None:
        """Queue a trace, and write the latest ones once they are a lot.

        What is in no full lot is written by the thread that exports it. A trace that
        cannot be written is dropped, and the log says so once.
        """
        queued = KeptTrace(lambda: self._spans(trace, kept, wall_offset_ns))
        self._unwritten.append(queued)
        self._processor.on_end(queued)
        if len(self._unwritten) >= _LOT or _held_bytes(trace) > _MAX_HELD_BYTES:
            for one in self._unwritten:
                one.settle()
            self._unwritten.clear()

    def _spans(
        self, trace: RequestTrace, kept: str, wall_offset_ns: int
    ) -> Sequence[bytes]:
        try:
            spans = self._tree.spans(trace, kept)
            return [write_span(span, wall_offset_ns) for span in spans]
        except Exception:
            if not self._is_broken:
                logger.exception("trace_dropped")
            self._is_broken = True
            return ()

    async def close(self, timeout_s: float) -> bool:
        """Flush for at most *timeout_s*; return whether the queue was emptied."""
        # Daemon threads: neither the SDK's flush nor its shutdown keeps a bound,
        # and the loop's own executor would be waited for at exit.
        flushed = await _in_daemon(self._processor.force_flush, timeout_s)
        self._exporter.shutdown()
        return await _in_daemon(self._processor.shutdown, 0.5) and flushed


def _held_bytes(trace: RequestTrace) -> int:
    usage = trace.usage
    return len(trace.body) + (0 if usage is None else len(usage.ending))


def _posts(traces: Sequence[KeptTrace]) -> Iterator[Sequence[KeptTrace]]:
    """Cut *traces* into posts that a collector takes: gRPC's default is 4 MiB."""
    begin = size_bytes = 0
    for at, kept in enumerate(traces):
        if size_bytes + len(kept.spans) > _MAX_POSTED_BYTES and at > begin:
            yield traces[begin:at]
            begin, size_bytes = at, 0
        size_bytes += len(kept.spans)
    if traces:
        yield traces[begin:]


async def _in_daemon(work: Callable[[], object], timeout_s: float) -> bool:
    """Run *work* in a thread; return whether it ended within *timeout_s*."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def run() -> None:
        try:
            work()
        finally:
            with contextlib.suppress(RuntimeError):  # the loop closed meanwhile
                loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, daemon=True, name="trace-flush").start()
    try:
        await asyncio.wait_for(done.wait(), timeout_s)
    except TimeoutError:
        return False
    return True
