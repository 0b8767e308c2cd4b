"""Real OTLP trace receivers on loopback sockets: over HTTP, and over gRPC."""

import asyncio
import gzip
from collections.abc import Callable, Iterable
from typing import Any

import grpc
from aiohttp import web
from conformance.rig import PATIENCE_S
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

KINDS = {
    Span.SPAN_KIND_SERVER: "server",
    Span.SPAN_KIND_CLIENT: "client",
    Span.SPAN_KIND_INTERNAL: "internal",
}


class ReceivedSpan:
    """One span as a collector sees it; events are (name, ns, attributes)."""

    def __init__(self, span: Span) -> None:
        self.name = span.name
        self.kind = KINDS.get(span.kind, "other")
        self.trace_id = span.trace_id.hex()
        self.span_id = span.span_id.hex()
        self.parent_id = span.parent_span_id.hex()
        self.start_ns = span.start_time_unix_nano
        self.end_ns = span.end_time_unix_nano
        self.is_error = span.status.code == Status.STATUS_CODE_ERROR
        self.message = span.status.message
        self.attributes = _attributes(span.attributes)
        self.events = [
            (one.name, one.time_unix_nano, _attributes(one.attributes))
            for one in span.events
        ]


class OtlpReceiver:
    """Collect the spans posted to ``/v1/traces``.

    Set ``status`` to make it refuse, or clear ``answers`` to make it hang.
    """

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.resource: dict[str, Any] = {}
        self.paths: list[str] = []
        self.status = 200
        self.answers = asyncio.Event()
        self.answers.set()
        self.url = ""
        self._arrived = asyncio.Condition()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> "OtlpReceiver":
        app = web.Application()
        app.router.add_post("/{path:.*}", self._receive)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *failure: object) -> None:
        self.answers.set()
        assert self._runner is not None
        await self._runner.cleanup()

    async def wait_for(self, num_spans: int, timeout_s: float = PATIENCE_S) -> None:
        """Return once *num_spans* have arrived."""
        async with asyncio.timeout(timeout_s), self._arrived:
            await self._arrived.wait_for(lambda: len(self.spans) >= num_spans)

    async def wait_until(
        self, holds: Callable[[], bool], timeout_s: float = PATIENCE_S
    ) -> None:
        """Return once *holds* says so; asked whenever something arrives."""
        async with asyncio.timeout(timeout_s), self._arrived:
            await self._arrived.wait_for(holds)

    async def wait_for_post(self, timeout_s: float = PATIENCE_S) -> None:
        """Return once anything was posted."""
        async with asyncio.timeout(timeout_s), self._arrived:
            await self._arrived.wait_for(lambda: bool(self.paths))

    def named(self, name: str) -> ReceivedSpan:
        """Return the only span of that name."""
        (span,) = [span for span in self.spans if span.name == name]
        return span

    async def _receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        if (
            request.headers.get("Content-Encoding") == "gzip"
            and body[:2] == b"\x1f\x8b"
        ):
            body = gzip.decompress(body)
        async with self._arrived:
            self.paths.append(request.path)
            self._arrived.notify_all()
        await self.answers.wait()
        if self.status != 200:
            return web.Response(status=self.status)
        async with self._arrived:
            self._keep(ExportTraceServiceRequest.FromString(body))
            self._arrived.notify_all()
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(),
            content_type="application/x-protobuf",
        )

    def _keep(self, posted: ExportTraceServiceRequest) -> None:
        for group in posted.resource_spans:
            self.resource = _attributes(group.resource.attributes)
            for scope in group.scope_spans:
                self.spans += [ReceivedSpan(span) for span in scope.spans]


class GrpcReceiver(OtlpReceiver, TraceServiceServicer):
    """The same over gRPC."""

    async def __aenter__(self) -> "GrpcReceiver":
        self._server = grpc.aio.server()
        add_TraceServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._server.stop(None)

    async def Export(
        self, request: ExportTraceServiceRequest, context: Any
    ) -> ExportTraceServiceResponse:
        async with self._arrived:
            self.paths.append("Export")
            self._keep(request)
            self._arrived.notify_all()
        return ExportTraceServiceResponse()


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
