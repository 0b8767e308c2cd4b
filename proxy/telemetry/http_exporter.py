"""The SDK's OTLP/HTTP exporter, for batches that are written already."""

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from warmroute.proxy.telemetry.span_batch import SpanBatch
from warmroute.proxy.telemetry.telling import Telling, innermost, without_credentials


class HttpExporter(OTLPSpanExporter, Telling):
    """Post a batch's content through the client that the SDK's exporter has.

    That client is private and new in 1.45; where it is not found the exporter is given
    spans, and encodes them itself.
    """

    def __init__(self, endpoint: str | None) -> None:
        super().__init__(endpoint=endpoint)
        self.endpoint = without_credentials(self._endpoint)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export *spans*, a `SpanBatch`; blocks for the exporter's timeout at most."""
        send = getattr(getattr(self, "_client", None), "export", None)
        if send is None or self._shutdown or not isinstance(spans, SpanBatch):
            return super().export(spans)
        sent = send(spans.content)
        if sent.success:
            return SpanExportResult.SUCCESS
        self.failure = _reason(sent.status_code, sent.error)
        return SpanExportResult.FAILURE


def _reason(status: int | None, error: Exception | None) -> str:
    if status is not None:
        return f"status {status}"
    return "no answer in time" if error is None else innermost(error)
