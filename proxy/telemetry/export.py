"""Export of kept traces by OTLP; needs the ``otel`` extra, or ``otel-grpc``."""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence

from opentelemetry.sdk.environment_variables import (
    OTEL_BSP_MAX_EXPORT_BATCH_SIZE,
    OTEL_BSP_MAX_QUEUE_SIZE,
)
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SpanExporter,
    SpanExportResult,
)

from warmroute.proxy.telemetry.collector import GRPC, Collector
from warmroute.proxy.telemetry.lot import Lot
from warmroute.proxy.telemetry.request_trace import RequestTrace
from warmroute.proxy.telemetry.span_batch import Origin, SpanBatch
from warmroute.proxy.telemetry.span_message import write_span
from warmroute.proxy.telemetry.span_tree import SpanTree
from warmroute.proxy.telemetry.telling import Telling

_MAX_POSTED_BYTES = 2 << 20
_MAX_QUEUED = 2048  # traces; what the SDK has for spans
_POST = 512
_LOT = 16

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


class TracePoster(SpanExporter):
    """Turn lots of kept traces into batches of spans, and hand them on.

    Args:
        exporter: Gets the batches.
        origin: Who sends them.
    """

    __slots__ = ("_exporter", "_origin")

    def __init__(self, exporter: SpanExporter, origin: Origin) -> None:
        self._exporter = exporter
        self._origin = origin

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export all spans of the lots; called by the processor's thread."""
        result = SpanExportResult.SUCCESS
        lots = [lot for lot in spans if isinstance(lot, Lot)]
        for lot in lots:
            lot.take()
        for post in _posts([lot for lot in lots if lot.num_spans]):
            num_spans = sum(lot.num_spans for lot in post)
            written = [lot.spans for lot in post]
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
    dead collector costs traces, never requests. Traces wait in lots, which the SDK
    takes for spans.

    Args:
        exporter: Sends what is queued.
        tree: Tells the spans of a trace.
        version: Version of warmroute, for the resource and the scope.
    """

    __slots__ = ("_exporter", "_is_broken", "_lot", "_lot_size", "_processor", "_tree")

    def __init__(self, exporter: SpanExporter, tree: SpanTree, version: str) -> None:
        # The SDK logs every failed batch and every dropped span; the watched
        # exporter says the same once.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        watched = WatchedExporter(exporter)
        self._tree = tree
        self._is_broken = False
        self._exporter = TracePoster(watched, Origin(version))
        max_queued = _setting(OTEL_BSP_MAX_QUEUE_SIZE, _MAX_QUEUED)
        max_posted = min(max_queued, _setting(OTEL_BSP_MAX_EXPORT_BATCH_SIZE, _POST))
        self._lot_size = min(_LOT, max_posted)
        self._lot: Lot | None = None
        self._processor = BatchSpanProcessor(
            self._exporter,
            max_queue_size=max_queued // self._lot_size,
            max_export_batch_size=max_posted // self._lot_size,
        )

    def write(self, trace: RequestTrace, kept: str, wall_offset_ns: int) -> None:
        """Queue a trace, and write the latest ones once they are a lot.

        What is in no full lot is written by the thread that exports it. A trace that
        cannot be written is dropped, and the log says so once.
        """
        lot = self._lot
        if lot is None or not lot.add(trace, kept, wall_offset_ns):
            self._lot = lot = Lot(self._lot_size, self._spans)
            lot.add(trace, kept, wall_offset_ns)
            self._processor.on_end(lot)

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


def _setting(name: str, default: int) -> int:
    """Return a number of traces that the environment gives; *default* for nonsense."""
    text = os.environ.get(name, "").strip()
    return int(text) if text.isdecimal() and int(text) else default


def _posts(lots: Sequence[Lot]) -> Iterator[Sequence[Lot]]:
    """Cut *lots* into posts that a collector takes: gRPC's default is 4 MiB."""
    begin = size_bytes = 0
    for at, lot in enumerate(lots):
        if size_bytes + len(lot.spans) > _MAX_POSTED_BYTES and at > begin:
            yield lots[begin:at]
            begin, size_bytes = at, 0
        size_bytes += len(lot.spans)
    if lots:
        yield lots[begin:]


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
