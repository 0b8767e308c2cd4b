"""What the relay reads from passing answers: first token, usage, ids.

A stream is decoded until its first token; after that only references to the last
pieces are kept, and decoded once at the end. Any other answer is kept up to a bound
and decoded at the end. Nothing here delays or changes a byte.
"""

from collections import deque
from typing import Any

import msgspec

_MAX_JSON_BYTES = 1 << 20
_MAX_EVENT_BYTES = 1 << 18
_TAIL_PIECES = 16
_MAX_TOKENS = 1 << 31
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None


class _Nested(msgspec.Struct):
    id: str | None = None
    usage: _Usage | None = None


class _Answer(msgspec.Struct):
    id: Any = None
    usage: _Usage | None = None
    response: _Nested | None = None  # /v1/responses, as events
    message: Any = None  # /v1/messages, in its first event
    meta_info: Any = None  # SGLang /generate


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None


class _Event(msgspec.Struct):
    type: str | None = None
    choices: list[_Choice] | None = None
    text: str | None = None
    output_ids: Any = None


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_answers = msgspec.json.Decoder(list[_Answer]).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_message = msgspec.json.Decoder(_Nested).decode


class Usage(msgspec.Struct):
    """What the engine reported of one request; None is not reported."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    answer_id: str | None = None


class AnswerWatch:
    """Watch an answer that is one JSON document."""

    __slots__ = ("_bytes", "_pieces")

    streams = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._bytes = 0

    def feed(self, piece: bytes) -> bool:
        """Keep *piece* for the end; never a token by itself."""
        self._bytes += len(piece)
        if self._bytes <= _MAX_JSON_BYTES:
            self._pieces.append(piece)
        else:
            self._pieces.clear()
        return False

    def usage(self) -> Usage:
        """Read what the complete answer reports."""
        usage = Usage()
        pieces = self._pieces
        _read(pieces[0] if len(pieces) == 1 else b"".join(pieces), usage)
        return usage


class StreamWatch:
    """Watch an answer that is a stream of server-sent events."""

    __slots__ = ("_first", "_is_whole", "_open", "_tail", "_usage")

    streams = True

    def __init__(self) -> None:
        self._first = False
        self._is_whole = True
        self._open = b""
        self._tail: deque[bytes] = deque(maxlen=_TAIL_PIECES)
        self._usage = Usage()

    def feed(self, piece: bytes) -> bool:
        """Note *piece*; True when it carries a token (each, after the first)."""
        if self._is_whole:
            self._tail.append(piece)
        else:
            self._tail[-1] += piece  # an event in parts is one piece
        self._is_whole = (
            piece.endswith(b"\n") or len(self._tail[-1]) >= _MAX_EVENT_BYTES
        )
        if self._first:
            return True
        self._open += piece
        *whole, self._open = _split(self._open)
        for event in whole:
            data = _data(event)
            if data is not None and self._meets(data):
                self._first = True
                self._open = b""
                return True
        if len(self._open) > _MAX_EVENT_BYTES:
            # No event format that we know; the bytes still are an answer.
            self._first = True
            self._open = b""
        return self._first

    def _meets(self, data: bytes) -> bool:
        _read(data, self._usage)
        try:
            return _has_token(_decode_event(data))
        except _UNREADABLE:
            return False

    def usage(self) -> Usage:
        """Read what the last events report, over what the first ones did."""
        for event in _split(b"".join(self._tail)):
            if b"usage" in event or b"meta_info" in event:
                data = _data(event)
                if data is not None:
                    _read(data, self._usage)
        return self._usage


def _split(stream: bytes) -> list[bytes]:
    """Cut at blank lines, of either line ending; the last part is unfinished."""
    if b"\r" in stream:
        stream = stream.replace(b"\r\n", b"\n")
    return stream.split(b"\n\n")


def _data(event: bytes) -> bytes | None:
    at = event.find(b"data:")
    return event[at + 5 :].strip() if at >= 0 else None


def _has_token(event: _Event) -> bool:
    if event.choices is not None:
        return any(_is_content(choice) for choice in event.choices)
    kind = event.type
    if kind is not None:
        return kind.endswith((".delta", "_delta")) and kind != "message_delta"
    return bool(event.text or event.output_ids)


def _is_content(choice: _Choice) -> bool:
    delta = choice.delta
    if delta is None:
        return bool(choice.text)
    return bool(
        delta.content
        or delta.reasoning_content
        or delta.reasoning
        or delta.tool_calls
        or delta.function_call
    )


def _read(data: bytes, into: Usage) -> None:
    """Add what one JSON document reports; one that is none reports nothing."""
    try:
        if data[:1] != b"[":
            _take(_decode_answer(data), into)
            return
        _take_sum(_decode_answers(data), into)
    except _UNREADABLE:
        return


def _take_sum(answers: list[_Answer], into: Usage) -> None:
    """Add up a batch, whose prompts were counted together too."""
    each = [Usage() for _ in answers]
    for answer, one in zip(answers, each, strict=True):
        _take(answer, one)
    for name in ("prompt_tokens", "cached_tokens", "output_tokens"):
        told = [count for one in each if (count := getattr(one, name)) is not None]
        if told and _is_credible(total := sum(told)):
            setattr(into, name, total)


def _take(answer: _Answer, into: Usage) -> None:
    if into.answer_id is None and isinstance(answer.id, str):
        into.answer_id = answer.id
    if answer.usage is not None:
        _take_usage(answer.usage, into)
    if answer.response is None and answer.message is None and answer.meta_info is None:
        return
    if answer.response is not None:
        into.answer_id = answer.response.id or into.answer_id
        if answer.response.usage is not None:
            _take_usage(answer.response.usage, into)
    if isinstance(answer.message, dict):
        nested = msgspec.convert(answer.message, _Nested, strict=False)
        if nested.usage is not None:
            _take_usage(nested.usage, into)
    if isinstance(answer.meta_info, dict):
        meta = msgspec.convert(answer.meta_info, _Usage, strict=False)
        _take_usage(meta, into)


def _take_usage(usage: _Usage, into: Usage) -> None:
    details = usage.prompt_tokens_details or usage.input_tokens_details
    cached = usage.cached_tokens if details is None else details.cached_tokens
    prompt = usage.prompt_tokens
    if prompt is None:
        prompt = usage.input_tokens
        if prompt is not None and usage.cache_read_input_tokens is not None:
            # Anthropic counts the cached tokens beside input_tokens, not within.
            cached = usage.cache_read_input_tokens
            parts = (prompt, cached, usage.cache_creation_input_tokens or 0)
            prompt = sum(parts) if all(map(_is_credible, parts)) else None
    # _is_credible in place: this is read of every answer.
    if prompt is not None and 0 < prompt <= _MAX_TOKENS:
        into.prompt_tokens = prompt
    if cached is not None and 0 <= cached <= _MAX_TOKENS:
        into.cached_tokens = cached
    output = usage.completion_tokens
    if output is None:
        output = usage.output_tokens
    if output is not None and 0 <= output <= _MAX_TOKENS:
        into.output_tokens = output


def _is_credible(count: int | None) -> bool:
    """Tell whether *count* may be one; what is not counts as not reported."""
    return count is not None and 0 <= count <= _MAX_TOKENS
