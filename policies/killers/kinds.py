"""What kind of thing differs, by its looks."""

import re
from typing import Final, Literal

Kind = Literal["timestamp", "uuid", "id", "number", "tool_order", "order", "text"]

ORDERS: Final[tuple[Kind, ...]] = ("tool_order", "order")

MAX_SHORT_BYTES: Final = 256
"""Longer than this, what differs is text, whatever stands in it."""

_UUID: Final = re.compile(
    rb"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
)
_TIME: Final = re.compile(
    rb"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{2,4}|\d{1,2}:\d{2}"
    rb"|\b1[5-9]\d{8}(?:\d{3}|\d{6}|\d{9})?(?:\.\d+)?\b"
    rb"|(?i:\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.? \d{1,2}\b)"
    rb"|(?i:\b\d{1,2}\.? (?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec))"
)
_ID: Final = re.compile(
    rb"\b(?=[\w-]*\d)(?=[\w-]*[A-Za-z])(?:[0-9a-fA-F]{8,}|[\w-]{12,})\b"
)
_NUMBER: Final = re.compile(rb"\d")
# As canonical text begins the field of the tools; 0xFD is no byte of UTF-8.
_FIELD: Final = b"\xfd"
_TOOLS: Final = (b"\xfdtools", b"\xfdfunctions")

_PHRASES: Final[dict[Kind, str]] = {
    "timestamp": "a time or date",
    "uuid": "a UUID",
    "id": "an id",
    "number": "a number",
    "tool_order": "the order of the tools",
    "order": "the order of the same parts",
    "text": "text of one request or user",
}
_REMEDIES: Final[dict[Kind, str]] = {
    "timestamp": "move it behind the shared text, or round it to the day",
    "tool_order": "always send the tools in the same order",
    "order": "always send them in the same order",
}
_REMEDY: Final = "move it behind the shared text"


def classify(text: bytes, start: int, end: int) -> Kind:
    """Return what the bytes from *start* to *end* are, that no request had before."""
    if end - start > MAX_SHORT_BYTES:
        return "text"
    part = text[start:end]
    if _UUID.search(part):
        return "uuid"
    if _TIME.search(part):
        return "timestamp"
    if _ID.search(part):
        return "id"
    return "number" if _NUMBER.search(part) else "text"


def classify_order(text: bytes, start: int) -> Kind:
    """Return what is in another order at *start*."""
    field = text.rfind(_FIELD, 0, start + 1)
    is_tool = field >= 0 and text.startswith(_TOOLS, field)
    return "tool_order" if is_tool else "order"


def phrase(kind: Kind) -> str:
    """Return the kind in words."""
    return _PHRASES[kind]


def remedy(kind: Kind) -> str:
    """Return what to do about it."""
    return _REMEDIES.get(kind, _REMEDY)
