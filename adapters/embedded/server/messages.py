"""The messages of a chat as its template takes them: text and tool calls."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from warmroute.adapters.embedded.server.errors import BadField
from warmroute.policies.registry import explain_unknown

ROLES = ("assistant", "developer", "function", "system", "tool", "user")

# Characters of a client's own word that an error repeats.
_SHOWN = 64
_KEPT = ("name", "tool_call_id", "reasoning_content", "tool_calls")
_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}


def read_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return *messages* with their content as one string each. O(bytes).

    Text parts are joined by line feeds, empty ones left out, and the arguments of
    tool calls become objects, as vLLM hands both to a template.

    Raises:
        BadField: There are no messages, or one has a role or content that no text
            model can take.
    """
    if not messages:
        raise BadField("messages", "must hold at least one message")
    return [_read(one, f"messages[{at}]") for at, one in enumerate(messages)]


def _read(message: Mapping[str, Any], place: str) -> dict[str, Any]:
    role = message.get("role")
    if role not in ROLES:
        said = str(role)[:_SHOWN]
        raise BadField(f"{place}.role", explain_unknown("role", said, ROLES))
    if message.get("audio") is not None:
        raise _unreadable(f"{place}.audio", "audio")
    read = {"role": role, "content": _read_content(message, place)}
    for name in _KEPT:
        if message.get(name) is not None:
            read[name] = message[name]
    if "tool_calls" in read:
        read["tool_calls"] = _read_calls(read["tool_calls"], f"{place}.tool_calls")
    return read


def _read_content(message: Mapping[str, Any], place: str) -> str:
    content = message.get("content")
    place = f"{place}.content"
    match content:
        case str():
            return content
        case None if message.get("tool_calls"):
            return ""
        case None:
            raise BadField(
                place, "this field is required", "missing_required_parameter"
            )
        case list():
            parts = (
                _read_part(one, f"{place}[{at}]") for at, one in enumerate(content)
            )
            return "\n".join(filter(None, parts))
    kind = type(content).__name__
    raise BadField(place, f"must be a string or a list of parts, not {kind}")


def _read_part(part: object, place: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise BadField(place, f"must be an object, not {type(part).__name__}")
    kind = part.get("type", "text")
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        raise _unreadable(place, str(kind)[:_SHOWN])
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise BadField(f"{place}.{_TEXT_PARTS[kind]}", "must be a string")
    return text


def _unreadable(place: str, kind: str) -> BadField:
    return BadField(
        place,
        f"content of type {kind!r} is not supported: the model reads text only "
        f"(allowed: {', '.join(sorted(_TEXT_PARTS))})",
        "unsupported_content",
    )


def _read_calls(calls: object, place: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise BadField(place, f"must be a list, not {type(calls).__name__}")
    return [_read_call(call, f"{place}[{at}]") for at, call in enumerate(calls)]


def _read_call(call: object, place: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise BadField(place, "must be an object with a function in it")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise BadField(
                f"{place}.function.arguments", "must be a JSON object in a string"
            ) from error
    return {**call, "function": {**function, "arguments": arguments or {}}}
