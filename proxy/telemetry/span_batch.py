"""Spans on their way to a collector: one message, or the SDK's spans."""

import os
import uuid
from collections.abc import Sequence
from functools import cached_property
from typing import overload

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as SdkEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode

from warmroute.proxy.telemetry.span import Span
from warmroute.proxy.telemetry.span_message import Shape, SpanDraft, shape_of

_UNSET = Status(StatusCode.UNSET)
_NOBODY = SpanContext(1, 1, False)


class Origin:
    """Who sends spans: the resource and the scope that all of them have.

    Args:
        version: Version of warmroute.
    """

    __slots__ = ("_empty", "resource", "scope")

    def __init__(self, version: str) -> None:
        self.resource = _resource(version)
        self.scope = InstrumentationScope("warmroute", version)
        one = ReadableSpan(
            "", _NOBODY, resource=self.resource, instrumentation_scope=self.scope
        )
        request = encode_spans([one])
        del request.resource_spans[0].scope_spans[0].spans[:]
        self._empty = request.SerializeToString()

    def request(self) -> ExportTraceServiceRequest:
        """Return a request of one scope that has no spans yet."""
        request = ExportTraceServiceRequest()
        request.ParseFromString(self._empty)
        return request

    def __repr__(self) -> str:
        return f"<Origin {self.scope.version}>"


class SpanBatch(Sequence[ReadableSpan]):
    """Spans to be posted together.

    `message` is what our exporters send. To any other exporter it is a sequence of the
    SDK's spans, which are made when asked for, at thrice the cost.

    Args:
        origin: Who sends them.
        spans: Each with what turns its times into Unix time, in nanoseconds.
    """

    def __init__(self, origin: Origin, spans: Sequence[tuple[Span, int]]) -> None:
        self._origin = origin
        self._spans = spans

    def __len__(self) -> int:
        return len(self._spans)

    @overload
    def __getitem__(self, at: int) -> ReadableSpan: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[ReadableSpan]: ...

    def __getitem__(self, at: int | slice) -> ReadableSpan | Sequence[ReadableSpan]:
        if isinstance(at, slice):
            return SpanBatch(self._origin, self._spans[at])
        return _readable(*self._spans[at], self._origin)

    @cached_property
    def message(self) -> ExportTraceServiceRequest:
        """All of them as OTLP has them."""
        request = self._origin.request()
        messages = request.resource_spans[0].scope_spans[0].spans
        drafts: dict[Shape, SpanDraft] = {}
        for span, offset_ns in self._spans:
            shape = shape_of(span)
            draft = drafts.get(shape)
            if draft is None:
                draft = drafts[shape] = SpanDraft(span)
            draft.fill(span, offset_ns)
            messages.append(draft.message)
        return request

    def __repr__(self) -> str:
        return f"<SpanBatch {len(self)} spans>"


def _readable(span: Span, offset_ns: int, origin: Origin) -> ReadableSpan:
    status = _UNSET if span.error is None else Status(StatusCode.ERROR, span.error)
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=origin.resource,
        attributes=span.attributes,
        events=[
            SdkEvent(one.name, one.attributes, offset_ns + round(one.at_s * 1e9))
            for one in span.events
        ],
        kind=span.kind,
        status=status,
        start_time=offset_ns + round(span.start_s * 1e9),
        end_time=offset_ns + round(span.end_s * 1e9),
        instrumentation_scope=origin.scope,
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
