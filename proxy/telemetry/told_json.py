"""Bodies and answers as spans tell of them.

Never compiled: mypyc does not know msgspec's classes.
"""

from typing import Any

import msgspec

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Sampling(msgspec.Struct):
    """How the answer is drawn."""

    temperature: Any = None
    top_p: Any = None
    sampling_params: Any = None


class Prompts(msgspec.Struct):
    """The prompt in the spellings of all APIs."""

    messages: Any = None
    prompt: Any = None
    input: Any = None
    text: Any = None


decode_sampling = msgspec.json.Decoder(Sampling).decode
decode_prompts = msgspec.json.Decoder(Prompts).decode


class Choice(msgspec.Struct):
    """One choice, or the last event of one."""

    finish_reason: Any = None


class Answer(msgspec.Struct):
    """An answer, or an event of one, in the spellings of all APIs."""

    model: Any = None
    choices: list[Choice] | None = None
    stop_reason: Any = None
    delta: Any = None  # Anthropic's message_delta holds the stop_reason
    response: Any = None  # OpenAI's response.completed
    status: Any = None
    meta_info: Any = None  # SGLang's /generate


decode_answer = msgspec.json.Decoder(Answer).decode
