"""A batch's message says what the SDK's encoder says of the same spans."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from integration.otlp_receiver import GrpcReceiver, OtlpReceiver
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from unit.trace_rig import TREE, fake_tracer, play

from warmroute.proxy.telemetry.collector import GRPC, HTTP, Collector
from warmroute.proxy.telemetry.export import KeptTrace, SpanBuilder, open_exporter
from warmroute.proxy.telemetry.span import Span
from warmroute.proxy.telemetry.span_batch import Origin, SpanBatch

ORIGIN = Origin("1.2.3")

text = st.text(st.characters(codec="utf-8"), max_size=200)
keys = st.sampled_from("abcd")
values = st.one_of(
    text,
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.lists(text, max_size=3).map(tuple),
)
# Few keys, so that most spans share a shape with one before them.
attributes = st.dictionaries(keys, values, max_size=3)
seconds = st.floats(0, 1e6)
contexts = st.builds(
    SpanContext,
    st.integers(1, (1 << 128) - 1),
    st.integers(1, (1 << 64) - 1),
    st.booleans(),
    st.just(TraceFlags(1)),
)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    kind = draw(st.sampled_from([SpanKind.SERVER, SpanKind.INTERNAL, SpanKind.CLIENT]))
    parent = draw(st.none() | contexts)
    span = Span(draw(text), kind, draw(contexts), parent, draw(seconds), draw(seconds))
    span.attributes = draw(attributes)
    span.error = draw(st.none() | st.sampled_from(["503", "upstream_lost"]))
    for name in draw(st.lists(st.sampled_from(["retry", "token"]), max_size=2)):
        # Each kind of event has keys of its own, and no others.
        value = draw(values)
        span.note(name, draw(seconds), {name: value, "warmroute": draw(text)})
    return span


class FakeExporter(SpanExporter):
    """Keep the batches."""

    def __init__(self) -> None:
        self.batches: list[Sequence[ReadableSpan]] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.batches.append(spans)
        return SpanExportResult.SUCCESS


def batch_of(*spans: Span) -> SpanBatch:
    return SpanBatch(ORIGIN, [(span, 10**18 + at) for at, span in enumerate(spans)])


def span_with(**facts: Any) -> Span:
    span = Span("s", SpanKind.CLIENT, SpanContext(1, 2, False), None, 1.0, 2.0)
    span.attributes = facts
    return span


@given(st.lists(spans(), min_size=1, max_size=8))
def test_a_message_is_that_of_the_sdk(several: list[Span]) -> None:
    """Whatever came before a span in the batch, nothing of it is left in the span."""
    batch = batch_of(*several)
    assert batch.message == encode_spans(list(batch))


def test_a_value_may_change_its_type() -> None:
    """Spans of the same keys share a draft, whatever the values are."""
    batch = batch_of(*[span_with(a=value) for value in (1, "x", True, 0.5, ("y",), 2)])
    assert batch.message == encode_spans(list(batch))


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1, 10**30])
def test_a_number_beyond_otlp_is_left_out_alone(number: int) -> None:
    """What an engine reports is not trusted; the rest of the span is sent."""
    message = batch_of(span_with(a=7, b=1), span_with(a=number, b=2)).message
    (_, span) = message.resource_spans[0].scope_spans[0].spans
    assert span.attributes[0].value.WhichOneof("value") is None
    assert span.attributes[1].value.int_value == 2


def test_a_slice_is_a_batch() -> None:
    """An exporter that cuts its input keeps the short way."""
    batch = batch_of(span_with(a=1), span_with(a=2), span_with(a=3))
    part = batch[1:]
    assert isinstance(part, SpanBatch)
    assert part.message == encode_spans(list(batch)[1:])


def test_an_exporter_that_was_rebuilt_encodes_the_spans_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The private client that we post through may be gone in another release."""
    exporter = open_exporter(Collector("http://127.0.0.1:9/v1/traces", HTTP))
    posted: list[bytes] = []

    def export(self: object, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        posted.append(encode_spans(spans).SerializeToString())
        return SpanExportResult.SUCCESS

    monkeypatch.setattr(OTLPSpanExporter, "export", export)
    monkeypatch.delattr(exporter, "_client")
    batch = batch_of(span_with(a=1))
    assert exporter.export(batch) is SpanExportResult.SUCCESS
    assert posted == [batch.message.SerializeToString()]


@pytest.mark.parametrize(
    ("messages", "posts"), [([None] * 600, 2), (["z" * (1 << 15)] * 40, 3)]
)
def test_posts_are_bounded(messages: list[str | None], posts: int) -> None:
    """Many traces, or few with long prompts, go in posts that a collector takes."""
    tracer, _ = fake_tracer()
    traces = []
    for text in messages:
        trace = play(tracer)
        trace.messages = text
        traces.append(KeptTrace(trace, "ratio", 0))
    exporter = FakeExporter()
    SpanBuilder(exporter, TREE, ORIGIN).export(traces)
    assert len(exporter.batches) == posts
    assert sum(map(len, exporter.batches)) == 3 * len(traces)
    for batch in exporter.batches:
        assert isinstance(batch, SpanBatch)
        assert batch.message.ByteSize() < 4 << 20


@pytest.mark.parametrize("protocol", [HTTP, GRPC])
async def test_a_batch_arrives_by_either_protocol(protocol: str) -> None:
    """The message is what is sent, not a second one."""
    kind = OtlpReceiver if protocol == HTTP else GrpcReceiver
    async with kind() as receiver:
        path = "/v1/traces" if protocol == HTTP else ""
        exporter = open_exporter(Collector(receiver.url + path, protocol))
        batch = batch_of(span_with(a=1))
        batch.message.resource_spans[0].scope_spans[0].spans[0].name = "marked"
        sent = await asyncio.to_thread(exporter.export, batch)
        assert sent is SpanExportResult.SUCCESS
        assert [span.name for span in receiver.spans] == ["marked"]
        exporter.shutdown()
