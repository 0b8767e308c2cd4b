"""OTLP messages of spans, copied in C from drafts that are filled again and again.

A span has a dozen attributes, and to make the messages of one costs several times what
it costs to set its value. Spans with the same keys have messages of the same shape: a
batch makes one draft for each shape that comes up, keeps hold of the values in it, and
sets these for one span after the other.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import SpanFlags, Status
from opentelemetry.trace import SpanKind

from warmroute.proxy.telemetry.span import Attribute, Span

_HAS_REMOTE: Final = int(SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)
_IS_REMOTE: Final = int(SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)
_KINDS: Final = {
    SpanKind.INTERNAL: SpanMessage.SPAN_KIND_INTERNAL,
    SpanKind.SERVER: SpanMessage.SPAN_KIND_SERVER,
    SpanKind.CLIENT: SpanMessage.SPAN_KIND_CLIENT,
}
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1

Shape = tuple[object, ...]


def shape_of(span: Span) -> Shape:
    """Return what spans must share to be filled into the same draft.

    That is kind, outcome, the keys of the attributes, and the kinds of the events; each
    kind of event has its own keys.
    """
    parent = span.parent
    is_remote = parent is not None and parent.is_remote
    named = (span.kind, span.error, parent is None, is_remote)
    if span.events:
        return (*named, *span.attributes, *[event.name for event in span.events])
    return (*named, *span.attributes)


class SpanDraft:
    """The message of a span, to be filled, copied and filled again.

    What it is filled with stays in its memory, so that it must not live for long.

    Args:
        span: The first one of its shape.
    """

    __slots__ = ("_events", "_values", "message")

    def __init__(self, span: Span) -> None:
        parent, status = span.parent, Status()
        is_remote = parent is not None and parent.is_remote
        if span.error is not None:
            status = Status(code=Status.STATUS_CODE_ERROR, message=span.error)
        self.message = SpanMessage(
            kind=_KINDS[span.kind],
            flags=_HAS_REMOTE | (_IS_REMOTE if is_remote else 0),
            status=status,
        )
        self._values = _open(self.message, span.attributes)
        self._events = []
        for event in span.events:
            told = self.message.events.add(name=event.name)
            self._events.append((told, _open(told, event.attributes)))

    def fill(self, span: Span, offset_ns: int) -> None:
        """Make the message that of *span*, which has the draft's shape; O(bytes).

        Args:
            span: Of a kept trace.
            offset_ns: Turns its times into Unix time.
        """
        message, parent = self.message, span.parent
        message.name = span.name
        message.trace_id = span.context.trace_id.to_bytes(16, "big")
        message.span_id = span.context.span_id.to_bytes(8, "big")
        if parent is not None:
            message.parent_span_id = parent.span_id.to_bytes(8, "big")
        message.start_time_unix_nano = offset_ns + round(span.start_s * 1e9)
        message.end_time_unix_nano = offset_ns + round(span.end_s * 1e9)
        _set(self._values, span.attributes)
        if span.events:
            for at, event in enumerate(span.events):
                told, values = self._events[at]
                told.time_unix_nano = offset_ns + round(event.at_s * 1e9)
                _set(values, event.attributes)

    def __repr__(self) -> str:
        return f"<SpanDraft {len(self._values)} attributes>"


def _open(
    message: SpanMessage | SpanMessage.Event, attributes: Mapping[str, Attribute]
) -> list[AnyValue]:
    """Add a pair for each attribute; return their values, which are not set yet."""
    return [message.attributes.add(key=key).value for key in attributes]


def _set(values: list[AnyValue], attributes: Mapping[str, Attribute]) -> None:
    for at, value in enumerate(attributes.values()):
        told = values[at]
        if isinstance(value, str):
            told.string_value = value
        elif isinstance(value, bool):
            told.bool_value = value
        elif isinstance(value, int):
            _set_number(told, value)
        elif isinstance(value, float):
            told.double_value = value
        else:
            told.array_value.CopyFrom(_texts(tuple(value)))


def _set_number(told: AnyValue, number: int) -> None:
    if _LEAST <= number <= _MOST:
        told.int_value = number
    else:  # an engine may report any number; OTLP has no place for this one
        told.Clear()


@lru_cache(maxsize=256)
def _texts(texts: tuple[str, ...]) -> ArrayValue:
    return ArrayValue(values=[AnyValue(string_value=text) for text in texts])
