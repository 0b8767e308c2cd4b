"""A span as OTLP has it: protobuf, written in one pass.

It is written when its request ends. What it tells lies in the processor's caches then;
a batch that is written later has to fetch all of it from memory again. Text that comes
back in every span, with its key, is written once and remembered.
"""

from collections.abc import Mapping
from functools import lru_cache
from struct import Struct
from typing import Final

from warmroute.proxy.telemetry.span import (
    CLIENT,
    INTERNAL,
    SERVER,
    Attribute,
    Event,
    Span,
)
from warmroute.proxy.telemetry.span_names import UNIQUE

# A field of a message is a tag (its number and how it is written) and its content.
_SPAN: Final = b"\x12"
_ATTRIBUTE: Final = b"\x4a"
_EVENT: Final = b"\x5a"
_EVENT_ATTRIBUTE: Final = b"\x1a"
_KINDS: Final = {INTERNAL: b"\x30\x01", SERVER: b"\x30\x02", CLIENT: b"\x30\x03"}
_REMOTE: Final = b"\x85\x01\x00\x03\x00\x00"
_NOT_REMOTE: Final = b"\x85\x01\x00\x01\x00\x00"
_NUMBER: Final = b"\x18"
_TRUE: Final = b"\x10\x01"
_FALSE: Final = b"\x10\x00"
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1
_MAX_REMEMBERED: Final = 128  # characters

_LAST = [bytes((low,)) for low in range(128)]
_MORE = [bytes((low | 128,)) for low in range(128)]
# Ids, kind, flags and times have the same size in every span, tags included.
_pack_head = Struct("<2s16s2s8s2s6scQcQ").pack
_pack_time = Struct("<cQ").pack
_pack_double = Struct("<cd").pack


def varint(number: int) -> bytes:
    """Write a number of 0 or more, seven bits to a byte."""
    if number < 128:
        return _LAST[number]
    return _MORE[number & 127] + varint(number >> 7)


def field(tag: bytes, content: bytes) -> bytes:
    """Write a field whose content is text, bytes or a message."""
    return tag + varint(len(content)) + content


def write_span(span: Span, offset_ns: int) -> bytes:
    """Write *span* as a field of ScopeSpans; O(bytes).

    Args:
        span: Of a kept trace.
        offset_ns: Turns its times into Unix time.
    """
    start_ns = offset_ns + round(span.start_s * 1e9)
    end_ns = offset_ns + round(span.end_s * 1e9)
    flags = _REMOTE if span.is_remote else _NOT_REMOTE
    head = _pack_head(
        *(b"\x0a\x10", span.trace_id, b"\x12\x08", span.span_id),
        *(_KINDS[span.kind], flags, b"\x39", start_ns, b"\x41", end_ns),
    )
    head += field(b"\x2a", _utf8(span.name)) + _status(span.error)
    if span.parent_id is not None:
        head += field(b"\x22", span.parent_id)
    for event in span.events:
        head += field(_EVENT, _event(event, offset_ns))
    return field(_SPAN, _with(head, _ATTRIBUTE, span.attributes))


def _event(event: Event, offset_ns: int) -> bytes:
    at_ns = offset_ns + round(event.at_s * 1e9)
    head = _pack_time(b"\x09", at_ns) + field(b"\x12", _utf8(event.name))
    return _with(head, _EVENT_ATTRIBUTE, event.attributes)


@lru_cache(maxsize=64)
def _status(error: str | None) -> bytes:
    if error is None:
        return field(b"\x7a", b"")
    return field(b"\x7a", field(b"\x12", _utf8(error)) + b"\x18\x02")


def _with(head: bytes, tag: bytes, attributes: Mapping[str, Attribute]) -> bytes:
    """Add the attributes to the rest of a message; each begins with *tag*."""
    pieces = [head]
    for key, value in attributes.items():
        if isinstance(value, str):
            pieces.append(_text(key, value))
        elif isinstance(value, bool):
            pieces.append(_pair(key, _TRUE if value else _FALSE))
        elif isinstance(value, int):
            pieces.append(_pair(key, _number(value)))
        elif isinstance(value, float):
            pieces.append(_pair(key, _pack_double(b"\x21", value)))
        else:
            pieces.append(_texts(key, tuple(value)))
    return tag.join(pieces)


def _text(key: str, text: str) -> bytes:
    if len(text) > _MAX_REMEMBERED or key in UNIQUE:
        return _pair(key, field(b"\x0a", _utf8(text)))
    return _known_text(key, text)


@lru_cache(maxsize=1024)
def _known_text(key: str, text: str) -> bytes:
    return _pair(key, field(b"\x0a", _utf8(text)))


@lru_cache(maxsize=64)
def _texts(key: str, texts: tuple[str, ...]) -> bytes:
    values = [field(b"\x0a", field(b"\x0a", _utf8(text))) for text in texts]
    return _pair(key, field(b"\x2a", b"".join(values)))


def _number(number: int) -> bytes:
    if number < _LEAST or number > _MOST:
        return b""  # an engine may report any number; OTLP has no place for this one
    return _NUMBER + varint(number if number >= 0 else number + (1 << 64))


def _pair(key: str, value: bytes) -> bytes:
    """Write a key with its value, without a tag."""
    return _key(key, len(value)) + value


@lru_cache(maxsize=512)
def _key(key: str, value_bytes: int) -> bytes:
    """Write all of a pair that comes before its value."""
    head = field(b"\x0a", _utf8(key)) + b"\x12" + varint(value_bytes)
    return varint(len(head) + value_bytes) + head


def _utf8(text: str) -> bytes:
    # Text of clients and engines is not trusted to be Unicode.
    return text.encode("utf-8", "replace")
