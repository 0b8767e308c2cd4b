"""OTLP messages of spans, filled from pieces that most spans share.

Most of a span says the same as the span before it: names, and attributes such as the
policy and the backend. These pieces are serialized once and kept, because protobuf reads
joined pieces of a message as the whole ("Encoding", "Last One Wins"): a span then costs
one parse in C, and the few fields that are its own.
"""

from functools import lru_cache
from typing import Final

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import SpanFlags, Status
from opentelemetry.trace import SpanKind

from warmroute.proxy.telemetry.span import Attribute, Span
from warmroute.proxy.telemetry.span_names import OWN

_HAS_REMOTE: Final = int(SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)
_IS_REMOTE: Final = int(SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)
_KINDS: Final = {
    SpanKind.INTERNAL: SpanMessage.SPAN_KIND_INTERNAL,
    SpanKind.SERVER: SpanMessage.SPAN_KIND_SERVER,
    SpanKind.CLIENT: SpanMessage.SPAN_KIND_CLIENT,
}
_MAX_PIECES: Final = 2048
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1


def fill(message: SpanMessage, span: Span, offset_ns: int) -> None:
    """Fill an empty *message* with all that *span* tells; O(bytes).

    Args:
        message: Of a batch, so that nothing is copied.
        span: Of a kept trace.
        offset_ns: Turns its times into Unix time.
    """
    parent, own = span.parent, []
    is_remote = parent is not None and parent.is_remote
    pieces = [_shape(span.name, span.kind, span.error, is_remote)]
    for key, value in span.attributes.items():
        if key in OWN:
            own.append((key, value))
        else:
            pieces.append(_piece(key, value))
    message.MergeFromString(b"".join(pieces))
    message.trace_id = span.context.trace_id.to_bytes(16, "big")
    message.span_id = span.context.span_id.to_bytes(8, "big")
    if parent is not None:
        message.parent_span_id = parent.span_id.to_bytes(8, "big")
    message.start_time_unix_nano = offset_ns + round(span.start_s * 1e9)
    message.end_time_unix_nano = offset_ns + round(span.end_s * 1e9)
    for key, value in own:
        _put(message.attributes.add(), key, value)
    for event in span.events:
        told = message.events.add()
        told.name = event.name
        told.time_unix_nano = offset_ns + round(event.at_s * 1e9)
        for key, value in event.attributes.items():
            _put(told.attributes.add(), key, value)


@lru_cache(maxsize=_MAX_PIECES)
def _shape(name: str, kind: SpanKind, error: str | None, is_remote: bool) -> bytes:
    status = Status()
    if error is not None:
        status = Status(code=Status.STATUS_CODE_ERROR, message=error)
    flags = _HAS_REMOTE | (_IS_REMOTE if is_remote else 0)
    shape = SpanMessage(name=name, kind=_KINDS[kind], status=status, flags=flags)
    piece: bytes = shape.SerializeToString()
    return piece


@lru_cache(maxsize=_MAX_PIECES, typed=True)
def _piece(key: str, value: Attribute) -> bytes:
    """Return a span that has one attribute and nothing else."""
    message = SpanMessage()
    _put(message.attributes.add(), key, value)
    piece: bytes = message.SerializeToString()
    return piece


def _put(pair: KeyValue, key: str, value: Attribute) -> None:
    pair.key = key
    if isinstance(value, str):
        pair.value.string_value = value
    elif isinstance(value, bool):
        pair.value.bool_value = value
    elif isinstance(value, int):
        if _LEAST <= value <= _MOST:  # an engine may report any number
            pair.value.int_value = value
    elif isinstance(value, float):
        pair.value.double_value = value
    else:
        texts = [AnyValue(string_value=text) for text in value]
        pair.value.array_value.CopyFrom(ArrayValue(values=texts))
