"""What we write of spans is what the SDK's encoder writes of the same spans."""

import asyncio
import logging
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from integration.otlp_receiver import GrpcReceiver, OtlpReceiver
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode
from unit.trace_rig import BODY, SAMPLED, TREE, FakeHead, fake_tracer, play

from warmroute.proxy.telemetry.attributes import field, varint
from warmroute.proxy.telemetry.collector import GRPC, HTTP, Collector
from warmroute.proxy.telemetry.export import OtlpSink, TracePoster, open_exporter
from warmroute.proxy.telemetry.lot import Lot
from warmroute.proxy.telemetry.shared_facts import SharedFacts
from warmroute.proxy.telemetry.span import CLIENT, INTERNAL, SERVER, Span
from warmroute.proxy.telemetry.span_batch import Origin, SpanBatch
from warmroute.proxy.telemetry.span_message import write_span
from warmroute.proxy.telemetry.span_names import UNIQUE

ORIGIN = Origin("1.2.3")
NOW_NS = 1_700_000_000_000_000_000
KINDS = {
    SERVER: SpanKind.SERVER,
    INTERNAL: SpanKind.INTERNAL,
    CLIENT: SpanKind.CLIENT,
}

text = st.text(st.characters(codec="utf-8"), max_size=200)
# Few keys and short texts too, so that most are met again, and with other types.
keys = st.sampled_from(["a", "b", "c", *sorted(UNIQUE)[:1]])
values = st.one_of(
    text,
    st.text("xy", max_size=1),
    st.booleans(),
    st.integers(-2, 2),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.lists(text, max_size=3).map(tuple),
)
attributes = st.dictionaries(keys, values, max_size=3)
seconds = st.floats(0, 1e6)


def ids(num_bytes: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=num_bytes, max_size=num_bytes).filter(any)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    parent_id = draw(st.none() | ids(8))
    span = Span(
        draw(text),
        draw(st.sampled_from(list(KINDS))),
        draw(ids(16)),
        draw(ids(8)),
        parent_id,
        draw(seconds),
        draw(seconds),
        is_remote=parent_id is not None and draw(st.booleans()),
    )
    own = draw(attributes)
    shared = {f"shared.{key}": value for key, value in draw(attributes).items()}
    span.own, span.shared = own, [SharedFacts(shared)]
    span.error = draw(st.none() | st.sampled_from(["503", "upstream_lost"]))
    for name in draw(st.lists(st.sampled_from(["retry", "token"]), max_size=2)):
        span.note(name, draw(seconds), draw(attributes))
    return span


def sdk_span(span: Span, offset_ns: int) -> ReadableSpan:
    """Tell *span* to the SDK: its encoder is the one to agree with."""
    trace_id, span_id = int(span.trace_id.hex(), 16), int(span.span_id.hex(), 16)
    parent = None
    if span.parent_id is not None:
        parent_id = int(span.parent_id.hex(), 16)
        parent = SpanContext(trace_id, parent_id, span.is_remote)
    code = StatusCode.UNSET if span.error is None else StatusCode.ERROR
    return ReadableSpan(
        name=span.name,
        context=SpanContext(trace_id, span_id, False),
        parent=parent,
        resource=ORIGIN.resource,
        attributes=span.attributes,
        events=[
            Event(one.name, one.attributes, offset_ns + round(one.at_s * 1e9))
            for one in span.events
        ],
        kind=KINDS[span.kind],
        status=Status(code, span.error),
        start_time=offset_ns + round(span.start_s * 1e9),
        end_time=offset_ns + round(span.end_s * 1e9),
        instrumentation_scope=ORIGIN.scope,
    )


class FakeExporter(SpanExporter):
    """Keep the batches."""

    def __init__(self) -> None:
        self.batches: list[Sequence[ReadableSpan]] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.batches.append(spans)
        return SpanExportResult.SUCCESS


def batch_of(*several: Span) -> SpanBatch:
    written = [write_span(span, NOW_NS + at) for at, span in enumerate(several)]
    return SpanBatch(ORIGIN, written, len(several))


def span_with(**facts: Any) -> Span:
    span = Span("s", CLIENT, b"t" * 16, b"s" * 8, None, 1.0, 2.0)
    span.own = facts
    return span


def lot_of(messages: str | None = None) -> Lot:
    """Return one of a trace with three spans and perhaps a long attribute."""
    tracer, sink = fake_tracer()
    trace = play(tracer)
    told = sink.traces[0]
    told[-1].add("gen_ai.input.messages", messages)
    lot = Lot(1, lambda *_: [write_span(span, NOW_NS) for span in told])
    assert lot.add(trace, "ratio", NOW_NS)
    return lot


@given(st.lists(spans(), min_size=1, max_size=8))
def test_a_message_is_that_of_the_sdk(several: list[Span]) -> None:
    """Whatever was written before a span, nothing of it is left in the span."""
    theirs = [sdk_span(span, NOW_NS + at) for at, span in enumerate(several)]
    assert batch_of(*several).message == encode_spans(theirs)


@given(st.lists(spans(), min_size=1, max_size=8))
def test_it_can_be_read_back_as_spans_of_the_sdk(several: list[Span]) -> None:
    """An exporter that knows nothing of our messages sends the same ones."""
    batch = batch_of(*several)
    assert encode_spans(list(batch)) == batch.message


def test_the_spans_of_a_request_are_those_of_the_sdk() -> None:
    """With the keys and the values that they really have."""
    tracer, sink = fake_tracer()
    play(tracer, FakeHead(traceparent=SAMPLED))
    told = sink.traces[0]
    theirs = [sdk_span(span, NOW_NS + at) for at, span in enumerate(told)]
    assert batch_of(*told).message == encode_spans(theirs)


def test_a_value_may_change_its_type() -> None:
    """What is remembered of a key and a text is not taken for something else."""
    several = [span_with(a=value) for value in (1, "1", True, 1.0, ("1",), "1", 1)]
    kinds = [
        span.attributes[0].value.WhichOneof("value")
        for span in batch_of(*several).message.resource_spans[0].scope_spans[0].spans
    ]
    assert kinds == [
        *("int_value", "string_value", "bool_value", "double_value"),
        *("array_value", "string_value", "int_value"),
    ]


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1, 10**30])
def test_a_number_beyond_otlp_is_left_out_alone(number: int) -> None:
    """What an engine reports is not trusted; the rest of the span is sent."""
    message = batch_of(span_with(a=7, b=1), span_with(a=number, b=2)).message
    (_, span) = message.resource_spans[0].scope_spans[0].spans
    assert span.attributes[0].value.WhichOneof("value") is None
    assert span.attributes[1].value.int_value == 2


def test_half_a_character_breaks_nothing() -> None:
    """What clients send is not trusted to be Unicode."""
    (span,) = ScopeSpans.FromString(write_span(span_with(a="a\ud800b"), 0)).spans
    assert span.attributes[0].value.string_value == "a?b"


@pytest.mark.parametrize(
    ("number", "written"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (2**64 - 1, "ff" * 9 + "01"),
    ],
)
def test_numbers_take_seven_bits_to_a_byte(number: int, written: str) -> None:
    """The examples of the protobuf encoding, and the largest one."""
    assert varint(number).hex() == written
    assert field(b"\x12", b"abc") == b"\x12\x03abc"


def test_a_slice_is_of_spans() -> None:
    """An exporter that cuts its input gets what it asked for."""
    batch = batch_of(span_with(a=1), span_with(a=2), span_with(a=3))
    assert [span.attributes for span in batch[1:]] == [{"a": 2}, {"a": 3}]
    assert len(batch) == 3


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
    ("messages", "posts"), [([None] * 2000, 2), (["z" * (1 << 17)] * 40, 3)]
)
def test_posts_are_bounded(messages: list[str | None], posts: int) -> None:
    """Many traces, or few with long prompts, go in posts that a collector takes."""
    by_text = {text: lot_of(text) for text in set(messages)}
    lots = [by_text[text] for text in messages]
    exporter = FakeExporter()
    TracePoster(exporter, ORIGIN).export(lots)
    assert len(exporter.batches) == posts
    assert sum(map(len, exporter.batches)) == 3 * len(lots)
    for batch in exporter.batches:
        assert isinstance(batch, SpanBatch)
        assert len(batch.content) < 4 << 20


@pytest.mark.parametrize(
    ("num_traces", "body"), [(16, BODY), (1, b"x" * (1 << 17))], ids=["lot", "large"]
)
async def test_what_waits_for_a_post_holds_nothing_of_the_request(
    num_traces: int, body: bytes
) -> None:
    """Written in lots, and with a large body at once: no client fills the queue."""
    exporter = FakeExporter()
    sink = OtlpSink(exporter, TREE, "1.2.3")
    tracer, _ = fake_tracer()
    alive = []
    for _ in range(num_traces):
        head = FakeHead()
        trace = play(tracer, head)
        trace.body = body
        alive.append(weakref.ref(head))
        sink.write(trace, "ratio", NOW_NS)
        del head, trace
    assert [one() for one in alive] == [None] * num_traces
    assert exporter.batches == []
    assert await sink.close(3.0)
    assert sum(map(len, exporter.batches)) == 3 * num_traces


async def test_a_trace_in_no_full_lot_is_written_when_it_is_sent() -> None:
    """The flush finds it, and it lets go of the request as well."""
    exporter = FakeExporter()
    sink = OtlpSink(exporter, TREE, "1.2.3")
    tracer, _ = fake_tracer()
    head = FakeHead()
    trace, alive = play(tracer, head), weakref.ref(head)
    sink.write(trace, "ratio", NOW_NS)
    del head, trace
    assert alive() is not None
    assert await sink.close(3.0)
    assert alive() is None
    assert [len(batch) for batch in exporter.batches] == [3]


async def test_a_trace_that_cannot_be_written_harms_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The request goes on, the log says so once, and the next trace is sent."""

    caplog.set_level(logging.ERROR)
    exporter = FakeExporter()
    sink = OtlpSink(exporter, TREE, "1.2.3")
    tracer, _ = fake_tracer()
    good, broken = play(tracer), play(tracer)
    broken.head = FakeHead(method=None)  # type: ignore[arg-type]
    for trace in (broken, broken, good):
        sink.write(trace, "ratio", NOW_NS)
    assert await sink.close(3.0)
    assert caplog.messages == ["trace_dropped"]
    assert [len(batch) for batch in exporter.batches] == [3]


@pytest.mark.parametrize("protocol", [HTTP, GRPC])
async def test_a_batch_arrives_by_either_protocol(protocol: str) -> None:
    """As it was written."""
    kind = OtlpReceiver if protocol == HTTP else GrpcReceiver
    async with kind() as receiver:
        path = "/v1/traces" if protocol == HTTP else ""
        exporter = open_exporter(Collector(receiver.url + path, protocol))
        sent = await asyncio.to_thread(exporter.export, batch_of(span_with(a=1)))
        assert sent is SpanExportResult.SUCCESS
        assert [span.attributes for span in receiver.spans] == [{"a": 1}]
        exporter.shutdown()
