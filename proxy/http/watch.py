"""What the relay reads from passing answers: first token, usage, ids.

A stream is decoded until its first token; after that only the last pieces that
name token counts are kept, and decoded once at the end. Any other answer is kept up to
a bound and decoded at the end. Nothing here delays or changes a byte.
"""

from collections import deque
from typing import Final

import msgspec

from warmroute.proxy.http.answer_json import (
    UNREADABLE,
    AnswerFields,
    Choice,
    NestedAnswer,
    ReportedUsage,
    StreamEvent,
    decode_answer,
    decode_answers,
    decode_event,
)

_MAX_JSON_BYTES: Final = 1 << 20
_MAX_EVENT_BYTES: Final = 1 << 18
_TAIL_PIECES: Final = 16
_ENDING_PIECES: Final = 8
_MAX_TOKENS: Final = 1 << 31


class Usage:
    """What the engine reported of one request; None is not reported.

    Attributes:
        ending: The answer, or the last events of one, for who reads more of it.
    """

    __slots__ = (
        *("answer_id", "cached_tokens", "ending", "output_tokens"),
        "prompt_tokens",
    )

    def __init__(
        self,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
        output_tokens: int | None = None,
        answer_id: str | None = None,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = cached_tokens
        self.output_tokens = output_tokens
        self.answer_id = answer_id
        self.ending = b""

    def __repr__(self) -> str:
        return f"<Usage {self._fields()}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Usage) and self._fields() == other._fields()

    def _fields(self) -> tuple[int | None, int | None, int | None, str | None]:
        counts = self.prompt_tokens, self.cached_tokens, self.output_tokens
        return *counts, self.answer_id


class AnswerWatch:
    """Watch an answer that is one JSON document."""

    __slots__ = ("_bytes", "_pieces")

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
        usage.ending = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        _read(usage.ending, usage)
        return usage


class StreamWatch:
    """Watch an answer that is a stream of server-sent events.

    Args:
        keeps_ending: Whether its last pieces are kept as the usage's ``ending``.
    """

    __slots__ = ("_ending", "_first", "_open", "_part", "_tail", "_usage")

    def __init__(self, keeps_ending: bool = False) -> None:
        self._ending: deque[bytes] | None = None
        if keeps_ending:
            self._ending = deque(maxlen=_ENDING_PIECES)
        self._first = False
        self._open = self._part = b""
        self._tail: deque[bytes] = deque(maxlen=_TAIL_PIECES)
        self._usage = Usage()

    def feed(self, piece: bytes) -> bool:
        """Note *piece*; True when it carries a token (each, after the first)."""
        if self._ending is not None:
            self._ending.append(piece)
        event = self._part + piece if self._part else piece
        if event[-1:] == b"\n" or len(event) >= _MAX_EVENT_BYTES:
            # Looked at while it is in the CPU's cache, most need not be kept.
            if _may_report(event):
                self._tail.append(event)
            self._part = b""
        else:
            self._part = event  # an event in parts is one piece
        return self._first or self._begins(piece)

    def _begins(self, piece: bytes) -> bool:
        *whole, self._open = _split(self._open + piece)
        for event in whole:
            data = _data(event)
            if data is not None and self._meets(data):
                self._first = True
                break
        # What is larger is no event format that we know, but it is an answer.
        if len(self._open) > _MAX_EVENT_BYTES:
            self._first = True
        if self._first:
            self._open = b""
        return self._first

    def _meets(self, data: bytes) -> bool:
        _read(data, self._usage)
        try:
            return _has_token(decode_event(data))
        except UNREADABLE:
            return False

    def usage(self) -> Usage:
        """Read what the last events report, over what the first ones did."""
        if self._ending is not None:
            self._usage.ending = b"".join(self._ending)
        if self._part:
            self._tail.append(self._part)
        for event in _split(b"\n\n".join(self._tail)):
            if _may_report(event):
                data = _data(event)
                if data is not None:
                    _read(data, self._usage)
        return self._usage


def _may_report(event: bytes) -> bool:
    # All counts of all APIs end so. A tenth of the cost of `in`, which takes bytes
    # for a number first.
    return event.find(b'_tokens"') >= 0


def _split(stream: bytes) -> list[bytes]:
    """Cut at blank lines, of either line ending; the last part is unfinished."""
    if b"\r" in stream:
        stream = stream.replace(b"\r\n", b"\n")
    return stream.split(b"\n\n")


def _data(event: bytes) -> bytes | None:
    at = event.find(b"data:")
    return event[at + 5 :].strip() if at >= 0 else None


def _has_token(event: StreamEvent) -> bool:
    if event.choices is not None:
        return any(_is_content(choice) for choice in event.choices)
    kind = event.type
    if kind is not None:
        return kind.endswith((".delta", "_delta")) and kind != "message_delta"
    return bool(event.text or event.output_ids)


def _is_content(choice: Choice) -> bool:
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
            _take(decode_answer(data), into)
            return
        _take_sum(decode_answers(data), into)
    except UNREADABLE:
        return


def _take_sum(answers: list[AnswerFields], into: Usage) -> None:
    """Add up a batch, whose prompts were counted together too."""
    each = [Usage() for _ in answers]
    for answer, one in zip(answers, each, strict=True):
        _take(answer, one)
    for name in ("prompt_tokens", "cached_tokens", "output_tokens"):
        told = [count for one in each if (count := getattr(one, name)) is not None]
        if told and _is_credible(total := sum(told)):
            setattr(into, name, total)


def _take(answer: AnswerFields, into: Usage) -> None:
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
        nested = msgspec.convert(answer.message, NestedAnswer, strict=False)
        if nested.usage is not None:
            _take_usage(nested.usage, into)
    if isinstance(answer.meta_info, dict):
        meta = msgspec.convert(answer.meta_info, ReportedUsage, strict=False)
        _take_usage(meta, into)


def _take_usage(usage: ReportedUsage, into: Usage) -> None:
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
