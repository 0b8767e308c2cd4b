"""The SDK's OTLP/gRPC exporter, for batches that are written already."""

import logging
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.sdk.trace import ReadableSpan

from warmroute.proxy.telemetry.span_batch import SpanBatch
from warmroute.proxy.telemetry.telling import MAX_REASON, Telling, without_credentials

_sdk_logger = logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter")


class GrpcExporter(OTLPSpanExporter, Telling):
    """Send a batch's message, which the exporter asks of its signal.

    Were that question renamed, the exporter would encode the spans itself. Why a batch
    failed it tells its own log alone, where it is heard.
    """

    def __init__(self, endpoint: str | None) -> None:
        super().__init__(endpoint=endpoint)
        self.endpoint = without_credentials(self._endpoint)
        self._heard = _Hearing(self)
        _sdk_logger.setLevel(logging.ERROR)
        _sdk_logger.propagate = False
        _sdk_logger.addHandler(self._heard)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        """Close the exporter; a retry that waits is cut short."""
        _sdk_logger.removeHandler(self._heard)
        super().shutdown(timeout_millis, **kwargs)

    def _translate_data(
        self, data: Sequence[ReadableSpan]
    ) -> ExportTraceServiceRequest:
        if isinstance(data, SpanBatch):
            return data.message
        return super()._translate_data(data)


class _Hearing(logging.Handler):
    """Keep the last error that the SDK's exporter logs, for ours to tell once."""

    def __init__(self, exporter: GrpcExporter) -> None:
        super().__init__(logging.ERROR)
        self._exporter = exporter

    def emit(self, record: logging.LogRecord) -> None:
        exporter = self._exporter
        said = record.getMessage().replace(exporter._endpoint, exporter.endpoint)
        exporter.failure = " ".join(said.split())[:MAX_REASON]
