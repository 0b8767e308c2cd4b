"""The SDK's OTLP/HTTP exporter with an encoder of our own."""

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from warmroute.proxy.telemetry.wire import encode


class HttpExporter(OTLPSpanExporter):
    """Post what `encode` makes, through the client that the SDK's exporter has.

    That client is private and new in 1.45; where it is not found the SDK's own way
    is taken, at about thrice the cost.
    """

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export *spans*, all of one resource and scope."""
        send = getattr(getattr(self, "_client", None), "export", None)
        if send is None or not spans or self._shutdown:
            return super().export(spans)
        scope = spans[0].instrumentation_scope
        assert scope is not None
        sent = send(encode(spans, spans[0].resource, scope))
        return SpanExportResult.SUCCESS if sent.success else SpanExportResult.FAILURE
