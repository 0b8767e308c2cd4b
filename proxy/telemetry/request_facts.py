"""What a span tells of a request's body, read only when its trace is kept."""

from collections.abc import Iterator
from typing import Any

import msgspec

from warmroute.proxy.telemetry import span_names as names
from warmroute.proxy.telemetry.told_json import (
    UNREADABLE,
    Prompts,
    decode_prompts,
    decode_sampling,
)

_NUMBERS = (int, float)  # of JSON; compiled, isinstance would make each a float
_MAX_NUMBER = 1e6  # no engine takes more, and an int of a body may pass any float
_MAX_BODY_BYTES = 1 << 20
_MAX_PROMPT_CHARS = 1 << 15


def sampling_facts(body: bytes) -> dict[str, float]:
    """Return temperature and top_p, where the body gives them as numbers."""
    if b'"temperature"' not in body and b'"top_p"' not in body:
        return {}  # most bodies, and many are long
    try:
        found = decode_sampling(body)
    except UNREADABLE:
        return {}
    nested = found.sampling_params if isinstance(found.sampling_params, dict) else {}
    told: dict[str, Any] = {
        names.REQUEST_TEMPERATURE: found.temperature,
        names.REQUEST_TOP_P: found.top_p,
    }
    if told[names.REQUEST_TEMPERATURE] is None:
        told[names.REQUEST_TEMPERATURE] = nested.get("temperature")
    if told[names.REQUEST_TOP_P] is None:
        told[names.REQUEST_TOP_P] = nested.get("top_p")
    return {
        name: float(value)
        for name, value in told.items()
        if type(value) in _NUMBERS and abs(value) < _MAX_NUMBER
    }


def input_messages(body: bytes) -> str | None:
    """Return the prompt as ``gen_ai.input.messages`` wants it, cut to 32 Ki chars.

    Only for ``tracing.prompts: true``.
    """
    if len(body) > _MAX_BODY_BYTES:
        return None
    try:
        found = decode_prompts(body)
    except UNREADABLE:
        return None
    left = _MAX_PROMPT_CHARS
    messages = []
    for role, text in _texts(found):
        if left <= 0:
            break
        part = {"type": "text", "content": text[:left]}
        left -= len(text)
        messages.append({"role": role, "parts": [part]})
    return msgspec.json.encode(messages).decode() if messages else None


def _texts(found: Prompts) -> Iterator[tuple[str, str]]:
    for value in (found.messages, found.prompt, found.input, found.text):
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str):
                yield "user", one
            elif isinstance(one, dict):
                yield str(one.get("role", "user"))[:32], _text(one.get("content"))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))
