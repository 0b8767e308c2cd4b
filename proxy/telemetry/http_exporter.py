"""The SDK's OTLP/HTTP exporter, for batches that are written already."""

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from warmroute.proxy.telemetry.span_batch import SpanBatch


class HttpExporter(OTLPSpanExporter):
    """Post a batch's content through the client that the SDK's exporter has.

    That client is private and new in 1.45; where it is not found the exporter is given
    spans, and encodes them itself.
    """

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export *spans*, a `SpanBatch`; blocks for the exporter's timeout at most."""
        send = getattr(getattr(self, "_client", None), "export", None)
        if send is None or self._shutdown or not isinstance(spans, SpanBatch):
            return super().export(spans)
        sent = send(spans.content)
        return SpanExportResult.SUCCESS if sent.success else SpanExportResult.FAILURE
