"""Written spans on their way to a collector: one message, or the SDK's spans."""

import os
import uuid
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import overload

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import SpanFlags
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as SdkEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode

from warmroute.proxy.telemetry.attributes import Attribute, varint
from warmroute.proxy.telemetry.span import CLIENT, INTERNAL, SERVER

_NOBODY = SpanContext(1, 1, False)
_KINDS = {
    INTERNAL: SpanKind.INTERNAL,
    SERVER: SpanKind.SERVER,
    CLIENT: SpanKind.CLIENT,
}


class Origin:
    """Who sends spans: the resource and the scope that all of them have.

    Args:
        version: Version of warmroute.
    """

    __slots__ = ("_resource_fields", "_scope_fields", "resource", "scope")

    def __init__(self, version: str) -> None:
        self.resource = _resource(version)
        self.scope = InstrumentationScope("warmroute", version)
        one = ReadableSpan(
            "", _NOBODY, resource=self.resource, instrumentation_scope=self.scope
        )
        (resource_spans,) = encode_spans([one]).resource_spans
        (scope_spans,) = resource_spans.scope_spans
        del scope_spans.spans[:]
        self._scope_fields = scope_spans.SerializeToString()
        del resource_spans.scope_spans[:]
        self._resource_fields = resource_spans.SerializeToString()

    def request(self, spans: Sequence[bytes]) -> bytes:
        """Return the request that has written *spans*, in one scope."""
        num_bytes = sum(map(len, spans))
        scope = _begin(b"\x12", self._scope_fields, num_bytes)
        head = _begin(b"\x0a", self._resource_fields + scope, num_bytes)
        return b"".join([head, *spans])  # the one copy of what may be a megabyte

    def __repr__(self) -> str:
        return f"<Origin {self.scope.version}>"


class SpanBatch(Sequence[ReadableSpan]):
    """Spans to be posted together.

    `content` is what our exporters send. To any other exporter it is a sequence of the
    SDK's spans, which are made when asked for, at many times the cost.

    Args:
        origin: Who sends them.
        spans: As `write_span` wrote them, one or several of a trace together.
        num_spans: How many there are.
    """

    def __init__(self, origin: Origin, spans: Sequence[bytes], num_spans: int) -> None:
        self._origin = origin
        self._num_spans = num_spans
        self.content = origin.request(spans)

    def __len__(self) -> int:
        return self._num_spans

    @overload
    def __getitem__(self, at: int) -> ReadableSpan: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[ReadableSpan]: ...

    def __getitem__(self, at: int | slice) -> ReadableSpan | Sequence[ReadableSpan]:
        return self._readable[at]

    @cached_property
    def message(self) -> ExportTraceServiceRequest:
        """The content as a message."""
        request = ExportTraceServiceRequest()
        request.ParseFromString(self.content)
        return request

    @cached_property
    def _readable(self) -> Sequence[ReadableSpan]:
        spans = self.message.resource_spans[0].scope_spans[0].spans
        return [_readable(span, self._origin) for span in spans]

    def __repr__(self) -> str:
        return f"<SpanBatch {len(self)} spans>"


def _begin(tag: bytes, content: bytes, num_bytes: int) -> bytes:
    """Write a field whose content goes on for so many bytes."""
    return tag + varint(len(content) + num_bytes) + content


def _readable(span: SpanMessage, origin: Origin) -> ReadableSpan:
    trace_id = int.from_bytes(span.trace_id, "big")
    is_remote = bool(span.flags & SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)
    parent_id = int.from_bytes(span.parent_span_id, "big")
    code = StatusCode(span.status.code)
    return ReadableSpan(
        name=span.name,
        context=SpanContext(trace_id, int.from_bytes(span.span_id, "big"), False),
        parent=SpanContext(trace_id, parent_id, is_remote) if parent_id else None,
        resource=origin.resource,
        attributes=_attributes(span.attributes),
        events=[
            SdkEvent(one.name, _attributes(one.attributes), one.time_unix_nano)
            for one in span.events
        ],
        kind=_KINDS[span.kind],
        status=Status(code, span.status.message or None),
        start_time=span.start_time_unix_nano,
        end_time=span.end_time_unix_nano,
        instrumentation_scope=origin.scope,
    )


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Attribute]:
    return {
        pair.key: _plain(pair.value, kind)
        for pair in pairs
        if (kind := pair.value.WhichOneof("value")) is not None
    }


def _plain(value: AnyValue, kind: str) -> Attribute:
    if kind == "array_value":
        return tuple(text.string_value for text in value.array_value.values)
    plain: str | bool | int | float = getattr(value, kind)
    return plain


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
