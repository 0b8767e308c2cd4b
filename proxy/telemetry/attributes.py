"""Attributes as OTLP has them: protobuf, written in one pass.

Text that comes back in every span is written once, with its key, and remembered.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final

from warmroute.proxy.telemetry.span_names import UNIQUE

Attribute = str | bool | int | float | Sequence[str]

# A field of a message is a tag (its number and how it is written) and its content.
_NUMBER: Final = b"\x18"
_TRUE: Final = b"\x10\x01"
_FALSE: Final = b"\x10\x00"
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1
_MAX_REMEMBERED: Final = 128  # characters
_MAX_HEAD: Final = 48  # bytes of a value: any number, and most ids

_LAST = [bytes((low,)) for low in range(128)]
_MORE = [bytes((low | 128,)) for low in range(128)]
_pack_double = Struct("<cd").pack
# By key and by size of the value, for the keys that we give attributes: they are few.
_heads: dict[str, list[bytes]] = {}


def varint(number: int) -> bytes:
    """Write a number of 0 or more, seven bits to a byte."""
    if number < 128:
        return _LAST[number]
    return _MORE[number & 127] + varint(number >> 7)


def field(tag: bytes, content: bytes) -> bytes:
    """Write a field whose content is text, bytes or a message."""
    return tag + varint(len(content)) + content


def utf8(text: str) -> bytes:
    """Write text; that of clients and engines is not trusted to be Unicode."""
    return text.encode("utf-8", "replace")


def write_attributes(tag: bytes, attributes: Mapping[str, Attribute]) -> bytes:
    """Write each attribute as a field of *tag*."""
    pieces = [b""]
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
        return _pair(key, field(b"\x0a", utf8(text)))
    return _known_text(key, text)


@lru_cache(maxsize=1024)
def _known_text(key: str, text: str) -> bytes:
    return _pair(key, field(b"\x0a", utf8(text)))


@lru_cache(maxsize=64)
def _texts(key: str, texts: tuple[str, ...]) -> bytes:
    values = [field(b"\x0a", field(b"\x0a", utf8(text))) for text in texts]
    return _pair(key, field(b"\x2a", b"".join(values)))


def _number(number: int) -> bytes:
    if number < _LEAST or number > _MOST:
        return b""  # an engine may report any number; OTLP has no place for this one
    return _NUMBER + varint(number if number >= 0 else number + (1 << 64))


def _pair(key: str, value: bytes) -> bytes:
    """Write a key with its value, without a tag."""
    size = len(value)
    if size >= _MAX_HEAD:
        return _head(key, size) + value
    heads = _heads.get(key)
    if heads is None:
        heads = _heads[key] = [_head(key, size) for size in range(_MAX_HEAD)]
    return heads[size] + value


def _head(key: str, value_bytes: int) -> bytes:
    """Write all of a pair that comes before its value."""
    head = field(b"\x0a", utf8(key)) + b"\x12" + varint(value_bytes)
    return varint(len(head) + value_bytes) + head
