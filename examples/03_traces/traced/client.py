"""A client that traces: one span around each chat, and its context sent along."""

from collections.abc import Sequence

import aiohttp
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator


class TracingClient:
    """Send chats, each in a trace of its own.

    Args:
        collector: Where its spans go, by OTLP over HTTP.
        http: Sends the requests.
    """

    __slots__ = ("_http", "_provider", "_tracer")

    def __init__(self, collector: str, http: aiohttp.ClientSession) -> None:
        exporter = OTLPSpanExporter(endpoint=f"{collector}/v1/traces")
        resource = Resource.create({"service.name": "chat-client"})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("example")
        self._http = http

    def __repr__(self) -> str:
        return f"<TracingClient {self._tracer!r}>"

    async def chat(
        self, url: str, model: str, messages: Sequence[dict[str, str]], max_tokens: int
    ) -> str:
        """Send one streamed chat and read it to its end; returns the trace id."""
        body = {
            "model": model,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        kind = trace.SpanKind.CLIENT
        with self._tracer.start_as_current_span("ask a question", kind=kind) as span:
            headers = {"X-Session-ID": "example"}
            TraceContextTextMapPropagator().inject(headers)
            target = f"{url}/v1/chat/completions"
            async with self._http.post(target, json=body, headers=headers) as answer:
                span.set_attribute("http.response.status_code", answer.status)
                answer.raise_for_status()
                await answer.read()
        return f"{span.get_span_context().trace_id:032x}"

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()
