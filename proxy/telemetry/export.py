"""Export of kept traces by OTLP; needs the ``otel`` extra, or ``otel-grpc``."""

import asyncio
import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Callable, Sequence

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as SdkEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Status, StatusCode

from warmroute.proxy.telemetry.collector import GRPC, Collector
from warmroute.proxy.telemetry.span import Span

_UNSET = Status(StatusCode.UNSET)

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
            logger.warning("trace_export_failed", extra={"lost_spans": self.lost})
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


class OtlpSink:
    """Queue ended traces for a thread that posts them in batches.

    The queue is bounded (OTEL_BSP_MAX_QUEUE_SIZE) and drops the oldest spans: a
    dead collector costs traces, never requests.

    Args:
        exporter: Sends what is queued.
        version: Version of warmroute, for the resource and the scope.
    """

    __slots__ = ("_exporter", "_processor", "_resource", "_scope")

    def __init__(self, exporter: SpanExporter, version: str) -> None:
        # The SDK logs every failed batch and every dropped span; the watched
        # exporter says the same once.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._exporter = WatchedExporter(exporter)
        self._processor = BatchSpanProcessor(self._exporter)
        self._resource = _resource(version)
        self._scope = InstrumentationScope("warmroute", version)

    def write(self, spans: Sequence[Span], wall_offset_ns: int) -> None:
        """Queue the spans of one request; never blocks."""
        for span in spans:
            self._processor.on_end(self._readable(span, wall_offset_ns))

    async def close(self, timeout_s: float) -> bool:
        """Flush for at most *timeout_s*; return whether the queue was emptied."""
        # Daemon threads: neither the SDK's flush nor its shutdown keeps a bound,
        # and the loop's own executor would be waited for at exit.
        flushed = await _in_daemon(self._processor.force_flush, timeout_s)
        self._exporter.shutdown()
        return await _in_daemon(self._processor.shutdown, 0.5) and flushed

    def _readable(self, span: Span, offset_ns: int) -> ReadableSpan:
        status = _UNSET if span.error is None else Status(StatusCode.ERROR, span.error)
        return ReadableSpan(
            name=span.name,
            context=span.context,
            parent=span.parent,
            resource=self._resource,
            attributes=span.attributes,
            events=[
                SdkEvent(one.name, one.attributes, offset_ns + round(one.at_s * 1e9))
                for one in span.events
            ],
            kind=span.kind,
            status=status,
            start_time=offset_ns + round(span.start_s * 1e9),
            end_time=offset_ns + round(span.end_s * 1e9),
            instrumentation_scope=self._scope,
        )


def _resource(version: str) -> Resource:
    attributes: dict[str, str] = {
        "service.version": version,
        "service.instance.id": str(uuid.uuid4()),
    }
    given = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in given
    if not named:
        attributes["service.name"] = "warmroute"
    return Resource.create(attributes)


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
