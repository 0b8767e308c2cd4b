"""The canonical bytes of a conversation, for the estimated grade.

What two requests share at their front in the engine's template, they share at the
front of these bytes: tools and system text first, then the messages in their order,
each closed in itself, so that appending a message extends the bytes. JSON whitespace,
escapes and key order do not show. Every field begins with a tag byte that UTF-8 never
contains (0xF5 ... 0xFF), so no text can imitate the structure, and none is escaped.
"""

from collections.abc import Iterable
from threading import Lock
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import astuple
from xxhash import xxh3_128_digest, xxh3_128_hexdigest

from warmroute.proxy.prompt.bodies import (
    ABSENT,
    ChatBody,
    Content,
    Function,
    Item,
    Message,
    Part,
    ToolCall,
)

ROLE: Final = b"\xff"
TEXT: Final = b"\xfe"
FIELD: Final = b"\xfd"
VALUE: Final = b"\xfc"
PART: Final = b"\xfb"
OPEN: Final = b"\xfa"
CLOSE: Final = b"\xf9"
CALL: Final = b"\xf8"
ARGUMENTS: Final = b"\xf7"
MEDIA: Final = b"\xf6"
ITEM: Final = b"\xf5"

_ROLES: Final = {
    role: ROLE + role.encode()
    for role in ("system", "developer", "user", "assistant", "tool", "function")
}
_ROLE_TEXTS: Final = {role: front + TEXT for role, front in _ROLES.items()}
_NO_OTHERS: Final = [None] * (len(Message.__struct_fields__) - 2)
_TEXT_TYPES: Final = frozenset(
    (None, "text", "input_text", "output_text", "reasoning_text", "summary_text")
)
_MEDIA_FIELDS = (
    *("image_url", "input_audio", "audio_url", "video_url", "file", "source"),
    *("file_id", "file_url", "file_data", "image", "audio", "video"),
    *("image_embeds", "audio_embeds", "data", "uuid"),
)
_ITEM_TEXTS = ("name", "call_id", "encrypted_content")
_ITEM_VALUES = ("arguments", "input", "action", "code")
_EMPTY_JSON: Final = frozenset((b"", b"null", b"[]", b"{}"))

_MEMO_ENTRIES: Final = 128
_MEMO_BYTES: Final = 65536

_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.decode
_memo: dict[bytes, bytes] = {}
_memo_lock: Final = Lock()


def encode_value(value: Any) -> bytes:
    """Return a string as it is, and anything else as JSON with sorted keys."""
    return value.encode() if type(value) is str else _encode_sorted(value)


def sort_json(raw: Raw) -> bytes:
    """Return JSON with sorted keys and no whitespace.

    Lists of tools repeat in request after request, so results are remembered
    under a digest of the raw bytes: 128 of them, of 64 KiB at most.
    """
    if len(raw) < 64 or len(raw) > _MEMO_BYTES:
        return _encode_sorted(_decode(raw))
    key = xxh3_128_digest(raw)
    known = _memo.get(key)
    if known is None:
        known = _encode_sorted(_decode(raw))
        with _memo_lock:  # large bodies are read in threads
            if len(_memo) >= _MEMO_ENTRIES:
                del _memo[next(iter(_memo))]
            _memo[key] = known
    return known


def digest_json(raw: Raw) -> bytes:
    """Return a hex digest of a JSON value, empty for null and empty values."""
    if not len(raw) or (value := _encode_sorted(_decode(raw))) in _EMPTY_JSON:
        return b""
    return xxh3_128_hexdigest(value).encode()


def join_plain_chat(body: ChatBody) -> bytes | None:
    """Return what `Transcript` writes for a chat of nothing but roles and texts.

    None when the body holds anything else of the prompt. O(bytes): one copy of
    each text, and the join.
    """
    if (
        body.messages is None
        or body.tools is not ABSENT
        or body.functions is not ABSENT
        or body.documents is not ABSENT
        or body.chat_template is not ABSENT
        or body.chat_template_kwargs is not ABSENT
        or body.reasoning_effort is not ABSENT
    ):
        return None
    out = []
    for message in body.messages:
        role, content, *others = astuple(message)
        if type(content) is not str or others != _NO_OTHERS:
            return None
        out.append(_ROLE_TEXTS.get(role) or ROLE + role.encode() + TEXT)
        out.append(content.encode())
    return b"".join(out)


class Transcript:
    """Write one conversation; methods append, `to_bytes` joins once."""

    __slots__ = ("_out", "has_media")

    def __init__(self) -> None:
        self._out: list[bytes] = []
        self.has_media = False

    def __repr__(self) -> str:
        return f"<Transcript [{len(self._out)} fields]>"

    def to_bytes(self) -> bytes:
        """Return the canonical bytes of all that was added."""
        return b"".join(self._out)

    def add_json(self, name: bytes, raw: Raw) -> None:
        """Add a JSON value; null and empty ones count as absent."""
        if len(raw) and (value := sort_json(raw)) not in _EMPTY_JSON:
            self._out += (FIELD, name, VALUE, value)

    def add_media(self, name: bytes, raw: Raw) -> None:
        """Add the digest of a reference or of inline data, unless it is empty.

        The engine's hash of the pixels cannot be known here; equal references
        are taken for equal images.
        """
        if digest := digest_json(raw):
            self.has_media = True
            self._out += (FIELD, name, MEDIA, digest)

    def add_message(self, role: str, content: Content) -> None:
        """Add a message that has a role and content only."""
        self._out.append(_ROLES.get(role) or ROLE + role.encode())
        self.add_content(content)

    def add_messages(self, messages: Iterable[Message]) -> None:
        """Add chat messages in order. O(bytes)."""
        out = self._out
        for message in messages:
            role = message.role
            out.append(_ROLES.get(role) or ROLE + role.encode())
            if (
                message.tool_calls is not None
                or message.tool_call_id is not None
                or message.name is not None
                or message.reasoning_content is not None
                or message.reasoning is not None
                or message.function_call is not None
                or message.audio is not None
            ):
                self._add_rich_message(message)
            elif type(content := message.content) is str:
                out += (TEXT, content.encode())
            else:
                self.add_content(content)

    def add_items(self, items: Iterable[Item]) -> None:
        """Add the input items of the responses API in order. O(bytes)."""
        for item in items:
            if item.role is not None and item.type in (None, "message"):
                self.add_message(item.role, item.content)
            else:
                self._add_item(item)

    def _add_rich_message(self, message: Message) -> None:
        self._add_text(b"name", message.name)
        self._add_text(b"tool_call_id", message.tool_call_id)
        self._add_text(b"reasoning", message.reasoning_content or message.reasoning)
        self._add_value(b"audio", message.audio)
        self.add_content(message.content)
        for call in message.tool_calls or ():
            self._add_call(call)
        if message.function_call is not None:
            self._add_function(b"", message.function_call)

    def add_content(self, content: Content) -> None:
        """Add text and other parts; one text part equals the bare text."""
        if content is None:
            return
        if type(content) is str:
            self._out += (TEXT, content.encode())
            return
        for part in content:
            if isinstance(part, str):
                self._out += (TEXT, part.encode())
            elif part.text is not None and part.type in _TEXT_TYPES:
                self._out += (TEXT, part.text.encode())
            else:
                self._add_part(part)

    def _add_part(self, part: Part) -> None:
        self._out += (PART, (part.type or "").encode())
        self._add_text(b"text", part.text)
        self._add_text(b"refusal", part.refusal)
        self._add_value(b"thinking", part.thinking)
        self._add_text(b"id", part.id)
        self._add_text(b"name", part.name)
        self._add_value(b"input", part.input)
        self._add_text(b"tool_use_id", part.tool_use_id)
        if part.content is not None:
            self._add_nested(b"content", part.content)
        for field in _MEDIA_FIELDS:
            self.add_media(field.encode(), getattr(part, field))

    def _add_item(self, item: Item) -> None:
        self._out += (ITEM, (item.type or "").encode())
        self._add_text(b"role", item.role)
        if item.type == "item_reference":
            self._add_text(b"id", item.id)
        for field in _ITEM_TEXTS:
            self._add_text(field.encode(), getattr(item, field))
        for field in _ITEM_VALUES:
            self._add_value(field.encode(), getattr(item, field))
        if item.summary is not None:
            self._add_nested(b"summary", item.summary)
        if item.content is not None:
            self._add_nested(b"content", item.content)
        if isinstance(item.output, dict):
            self._add_value(b"output", item.output)
        elif item.output is not None:
            self._add_nested(b"output", item.output)

    def _add_call(self, call: ToolCall) -> None:
        identity = (call.id or "").encode()
        if call.function is not None:
            self._add_function(identity, call.function)
        if call.custom is not None:
            self._out += (CALL, identity, FIELD, b"custom")
            self._out += (VALUE, encode_value(call.custom))

    def _add_function(self, identity: bytes, function: Function) -> None:
        self._out += (CALL, identity, FIELD, (function.name or "").encode())
        if function.arguments is not None:
            self._out += (ARGUMENTS, encode_value(function.arguments))

    def _add_nested(self, name: bytes, content: "Content | list[Part]") -> None:
        self._out += (FIELD, name, OPEN)
        self.add_content(content)  # type: ignore[arg-type]
        self._out.append(CLOSE)

    def _add_text(self, name: bytes, text: str | None) -> None:
        if text is not None:
            self._out += (FIELD, name, VALUE, text.encode())

    def _add_value(self, name: bytes, value: Any) -> None:
        if value is not None:
            self._out += (FIELD, name, VALUE, encode_value(value))
