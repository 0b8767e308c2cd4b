"""Tracing: which requests are sampled, and how their spans leave.

Sampling is decided from the first header on, before any span exists, so an
unsampled request costs one comparison. A sampled one collects plain facts
(`RequestTrace`); they become SDK spans once the request has ended. There is no
global tracer provider: a tracer belongs to the application that built it.
"""

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from warmroute.policies.errors import ConfigError
from warmroute.proxy.telemetry import span_names as names
from warmroute.proxy.telemetry.request_trace import Attribute, RequestTrace, Span
from warmroute.proxy.telemetry.sampling import Sampler, choose_sampler
from warmroute.proxy.telemetry.traceparent import parse_traceparent

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_MAX_TEXT = 256


class HeadFacts(Protocol):
    """What a trace reads of a request's head."""

    @property
    def method(self) -> bytes:
        """The method."""
        ...

    @property
    def path(self) -> str:
        """The path without its query."""
        ...

    @property
    def version(self) -> str:
        """The HTTP version, such as 1.1."""
        ...

    @property
    def fields(self) -> Mapping[bytes, bytes]:
        """Fields by lower-case name; ``traceparent``, ``user-agent`` among them."""
        ...


class SpanSink(Protocol):
    """Where the spans of ended requests go."""

    def write(self, trace: RequestTrace) -> None:
        """Queue the spans; drops them when the queue is full, never blocks."""
        ...

    async def close(self, timeout_s: float) -> bool:
        """Flush for at most *timeout_s*; return whether all was sent."""
        ...


class Tracer:
    """Start a trace for each sampled request.

    Where tracing is off there is no tracer at all: callers hold ``None``.

    Args:
        sink: Where ended traces go.
        sampler: Which requests are traced.
        scheme: http or https, as the data port speaks.
        host: Address of the data port.
        port: Port of the data port.
        wall_ns: Unix time in nanoseconds.
    """

    __slots__ = ("_host", "_port", "_scheme", "_sink", "_wall_ns", "sampler")

    def __init__(
        self,
        sink: SpanSink,
        sampler: Sampler,
        *,
        scheme: str = "http",
        host: str = "127.0.0.1",
        port: int = 8080,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._sink = sink
        self._scheme = scheme
        self._host = host
        self._port = port
        self._wall_ns = wall_ns
        self.sampler = sampler

    def start_server(
        self, head: HeadFacts, now: float, peer: bytes = b""
    ) -> RequestTrace | None:
        """Start the SERVER span, or return None when the request is not sampled.

        A client's headers are forwarded as received either way; of a sampled
        request only ``traceparent`` is replaced, by that of the attempt.

        Args:
            head: The request's head, with the trace headers among its fields.
            now: The request's arrival on the monotonic clock, in seconds.
            peer: The client's address.
        """
        given = head.fields.get(b"traceparent")
        parent = None if given is None else parse_traceparent(given.decode("latin-1"))
        trace_id = self.sampler.sample(parent)
        if trace_id is None:
            return None
        method = head.method.decode("latin-1")
        verb = method if method in names.METHODS else "HTTP"
        name = f"{verb} {head.path}" if head.path in names.ROUTES else verb
        span = Span(name, SpanKind.SERVER, self.context(trace_id), now)
        span.attributes = self._describe(head, method, peer)
        return RequestTrace(self, span, parent, self._wall_ns() - round(now * 1e9))

    def _describe(
        self, head: HeadFacts, method: str, peer: bytes
    ) -> dict[str, Attribute]:
        facts: dict[str, Attribute] = {
            names.HTTP_METHOD: method,
            names.URL_PATH: head.path[:_MAX_TEXT],
            names.URL_SCHEME: self._scheme,
            names.SERVER_ADDRESS: self._host,
            names.SERVER_PORT: self._port,
            names.PROTOCOL_VERSION: head.version,
        }
        if head.path in names.ROUTES:
            facts[names.HTTP_ROUTE] = head.path
        if method not in names.METHODS:
            facts[names.HTTP_METHOD] = "_OTHER"
            facts[names.HTTP_METHOD_ORIGINAL] = method[:_MAX_TEXT]
        if peer:
            facts[names.CLIENT_ADDRESS] = peer.decode("latin-1")
        agent = head.fields.get(b"user-agent")
        if agent:
            facts[names.USER_AGENT] = agent[:_MAX_TEXT].decode("latin-1")
        return facts

    def context(self, trace_id: int) -> SpanContext:
        """Return a fresh sampled span context of *trace_id*."""
        return SpanContext(trace_id, random.getrandbits(64) | 1, False, _SAMPLED)

    def export(self, trace: RequestTrace) -> None:
        """Hand an ended trace to the sink."""
        self._sink.write(trace)

    async def close(self, timeout_s: float = 3.0) -> bool:
        """Flush and stop within *timeout_s*; return whether all was sent."""
        return await self._sink.close(timeout_s)

    def __repr__(self) -> str:
        return f"<Tracer {self.sampler!r}>"


def build_tracer(
    endpoint: str | None,
    sample: float = 1.0,
    *,
    version: str,
    scheme: str = "http",
    host: str = "127.0.0.1",
    port: int = 8080,
    environ: Mapping[str, str] = os.environ,
) -> Tracer | None:
    """Return a tracer, or None when no endpoint is configured.

    The standard ``OTEL_*`` variables win over *endpoint* and *sample*.

    Raises:
        ConfigError: The extra is missing, or a variable is unusable.
    """
    if not _is_wanted(endpoint, environ):
        return None
    sampler = choose_sampler(sample, environ)
    try:
        from warmroute.proxy.telemetry.export import OtlpSink
    except ImportError as error:
        raise ConfigError(
            f"tracing: {error.name or error} is not installed; "
            "install it by: pip install 'warmroute[otel]'"
        ) from error
    from_environ = any(environ.get(name) for name in _ENDPOINTS)
    sink = OtlpSink(None if from_environ else _traces_url(endpoint or ""), version)
    return Tracer(sink, sampler, scheme=scheme, host=host, port=port)


_ENDPOINTS: Sequence[str] = (
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
)


def _is_wanted(endpoint: str | None, environ: Mapping[str, str]) -> bool:
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return False
    return bool(endpoint) or any(environ.get(name) for name in _ENDPOINTS)


def _traces_url(endpoint: str) -> str:
    """Return the signal's URL: the file names a collector, as the base URL does."""
    base = endpoint.rstrip("/")
    return base if base.endswith("/v1/traces") else f"{base}/v1/traces"
