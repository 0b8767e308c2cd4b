"""The SDK's OTLP/gRPC exporter, for batches that are written already."""

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.sdk.trace import ReadableSpan

from warmroute.proxy.telemetry.span_batch import SpanBatch


class GrpcExporter(OTLPSpanExporter):
    """Send a batch's message, which the exporter asks of its signal.

    Were that question renamed, the exporter would encode the spans itself.
    """

    def _translate_data(
        self, data: Sequence[ReadableSpan]
    ) -> ExportTraceServiceRequest:
        if isinstance(data, SpanBatch):
            return data.message
        return super()._translate_data(data)
