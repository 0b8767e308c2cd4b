"""The JSON of engines' answers: only the fields that are read of it."""

from typing import Any

import msgspec

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Details(msgspec.Struct):
    """How much of a prompt was cached."""

    cached_tokens: int | None = None


class ReportedUsage(msgspec.Struct):
    """Usage in the spellings of all APIs."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    prompt_tokens_details: Details | None = None
    input_tokens_details: Details | None = None


class NestedAnswer(msgspec.Struct):
    """An answer within an event."""

    id: str | None = None
    usage: ReportedUsage | None = None


class AnswerFields(msgspec.Struct):
    """What is read of an answer, or of an event of one."""

    id: Any = None
    usage: ReportedUsage | None = None
    response: NestedAnswer | None = None  # /v1/responses, as events
    message: Any = None  # /v1/messages, in its first event
    meta_info: Any = None  # SGLang /generate


class Delta(msgspec.Struct):
    """What an event of a chat adds."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None
    function_call: Any = None


class Choice(msgspec.Struct):
    """One choice of an event."""

    delta: Delta | None = None
    text: str | None = None


class StreamEvent(msgspec.Struct):
    """What tells whether an event carries a token."""

    type: str | None = None
    choices: list[Choice] | None = None
    text: str | None = None
    output_ids: Any = None


decode_answer = msgspec.json.Decoder(AnswerFields).decode
decode_answers = msgspec.json.Decoder(list[AnswerFields]).decode
decode_event = msgspec.json.Decoder(StreamEvent).decode
