"""A span as OTLP has it: protobuf, written in one pass."""

from struct import Struct
from typing import Final

from warmroute.proxy.telemetry.attributes import field, utf8, write_attributes
from warmroute.proxy.telemetry.shared_facts import SPAN_ATTRIBUTE
from warmroute.proxy.telemetry.span import CLIENT, INTERNAL, SERVER, Event, Span

_SPAN: Final = b"\x12"
_EVENT: Final = b"\x5a"
_EVENT_ATTRIBUTE: Final = b"\x1a"
_UNSET: Final = b"\x7a\x00"  # a status that says nothing
_KINDS: Final = {INTERNAL: b"\x30\x01", SERVER: b"\x30\x02", CLIENT: b"\x30\x03"}
_REMOTE: Final = b"\x85\x01\x00\x03\x00\x00"
_NOT_REMOTE: Final = b"\x85\x01\x00\x01\x00\x00"

_pack_times = Struct("<cQcQ").pack
_pack_time = Struct("<cQ").pack


def write_span(span: Span, offset_ns: int) -> bytes:
    """Write *span* as a field of ScopeSpans; O(bytes).

    Args:
        span: Of a kept trace.
        offset_ns: Turns its times into Unix time.
    """
    start_ns = offset_ns + round(span.start_s * 1e9)
    end_ns = offset_ns + round(span.end_s * 1e9)
    flags = _REMOTE if span.is_remote else _NOT_REMOTE
    pieces = [
        *(b"\x0a\x10", span.trace_id, b"\x12\x08", span.span_id),
        *(_KINDS[span.kind], flags, _pack_times(b"\x39", start_ns, b"\x41", end_ns)),
        field(b"\x2a", utf8(span.name)),
        _status(span.error),
    ]
    if span.parent_id is not None:
        pieces.append(field(b"\x22", span.parent_id))
    pieces += [field(_EVENT, _event(event, offset_ns)) for event in span.events]
    pieces += [shared.written for shared in span.shared]
    pieces.append(write_attributes(SPAN_ATTRIBUTE, span.own))
    return field(_SPAN, b"".join(pieces))


def _event(event: Event, offset_ns: int) -> bytes:
    at_ns = offset_ns + round(event.at_s * 1e9)
    head = _pack_time(b"\x09", at_ns) + field(b"\x12", utf8(event.name))
    return head + write_attributes(_EVENT_ATTRIBUTE, event.attributes)


def _status(error: str | None) -> bytes:
    if error is None:
        return _UNSET
    return field(b"\x7a", field(b"\x12", utf8(error)) + b"\x18\x02")
