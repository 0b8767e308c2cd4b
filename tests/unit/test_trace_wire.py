"""Our OTLP bytes mean what the SDK's encoder says."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from warmroute.proxy.telemetry.wire import encode

RESOURCE = Resource({"service.name": "warmroute", "number": 7})
SCOPE = InstrumentationScope("warmroute", "1.2.3")

text = st.text(st.characters(codec="utf-8"), max_size=300)
values = st.one_of(
    text,
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.lists(text, max_size=3).map(tuple),
)
attributes = st.dictionaries(text.filter(bool), values, max_size=6)
times = st.integers(0, (1 << 64) - 1)
contexts = st.builds(
    SpanContext,
    st.integers(1, (1 << 128) - 1),
    st.integers(1, (1 << 64) - 1),
    st.booleans(),
    st.just(TraceFlags(1)),
)
statuses = st.one_of(
    st.just(Status(StatusCode.UNSET)), text.map(lambda t: Status(StatusCode.ERROR, t))
)


@st.composite
def spans(draw: st.DrawFn) -> ReadableSpan:
    return ReadableSpan(
        name=draw(text),
        context=draw(contexts),
        parent=draw(st.none() | contexts),
        resource=RESOURCE,
        attributes=draw(attributes),
        events=[
            Event(draw(text), draw(attributes), draw(times))
            for _ in range(draw(st.integers(0, 2)))
        ],
        kind=draw(st.sampled_from([SpanKind.SERVER, SpanKind.CLIENT])),
        status=draw(statuses),
        start_time=draw(times),
        end_time=draw(times),
        instrumentation_scope=SCOPE,
    )


def read(content: bytes) -> Any:
    return ExportTraceServiceRequest.FromString(content)


@given(st.lists(spans(), min_size=1, max_size=4))
def test_bytes_are_those_of_the_sdk(batch: list[ReadableSpan]) -> None:
    """Read back, both are the same message."""
    ours = read(encode(batch, RESOURCE, SCOPE))
    assert ours == read(encode_spans(batch).SerializeToString())


def test_a_long_batch_is_whole() -> None:
    """Lengths beyond one and two bytes are written right."""
    context = SpanContext(1, 2, False, TraceFlags(1))
    batch = [
        ReadableSpan(
            name="s" * size,
            context=context,
            resource=RESOURCE,
            attributes={"text": "t" * size},
            kind=SpanKind.INTERNAL,
            start_time=1,
            end_time=2,
            instrumentation_scope=SCOPE,
        )
        for size in (1, 127, 128, 16_383, 16_384, 100_000)
    ]
    ours = read(encode(batch, RESOURCE, SCOPE))
    assert ours == read(encode_spans(batch).SerializeToString())
