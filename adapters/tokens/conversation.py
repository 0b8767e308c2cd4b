"""What vLLM makes of a chat's messages and tools before the template sees them.

Only what is certain to be handled the same is accepted; all else is `NotExact`, and
the caller does without exact tokens. The rules are those of vLLM 0.32:
``renderers/chat_utils.py`` for messages, the request's models for the order of keys.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from warmroute.adapters.tokens.errors import NotExact

Fields = Mapping[str, Any]

_TEXT_FIELDS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_MAY_BE_EMPTY = ("text", "refusal")
# Keys of any kind of part; others in a text part reach the template.
_PART_KEYS = frozenset(
    {
        *("audio_embeds", "audio_url", "closed", "data", "file", "image_embeds"),
        *("image_pil", "image_url", "input_audio", "name", "prompt_cache_breakpoint"),
        *("refusal", "text", "thinking", "type", "uuid", "video_embeds", "video_url"),
    }
)
_MEDIA_KEYS = (
    _PART_KEYS
    - {"closed", "prompt_cache_breakpoint", "type"}
    - {*_TEXT_FIELDS.values()}
)
_BILLING_LINE = "x-anthropic-billing-header"


def read_conversation(messages: Sequence[Fields], *, parts: bool) -> list[Any]:
    """Return *messages* as a template gets them. O(bytes).

    Args:
        messages: As in the body of a chat.
        parts: Whether the template takes contents as parts; see `takes_parts`.

    Raises:
        NotExact: A message holds media, or something that vLLM may treat otherwise.
    """
    return [_read_message(message, parts) for message in messages]


def merge_developers(messages: list[Any], source: str) -> list[Any]:
    """Make ``developer`` messages ``system`` ones where *source* knows no such role.

    All system messages then become one at the front, if they are not already.
    """
    if not any(message["role"] == "developer" for message in messages):
        return messages
    if '"developer"' in source or "'developer'" in source:
        return messages
    renamed = [_as_system(message) for message in messages]
    systems = [one for one in renamed if one["role"] == "system"]
    if len(systems) == 1 and renamed[0]["role"] == "system":
        return renamed
    texts = [text for one in systems if (text := _plain_text(one["content"]))]
    others = [one for one in renamed if one["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def read_tools(tools: Any) -> list[Any] | None:
    """Return *tools* with the keys, and their order, that templates get from vLLM.

    Raises:
        NotExact: They are no list of functions.
    """
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise NotExact("tools that are no list")
    return [_read_tool(tool) for tool in tools] or None


def _read_message(message: Fields, parts: bool) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str):
        raise NotExact("a message without a role")
    read: dict[str, Any] = {"role": role, "content": _content(message, role, parts)}
    if role == "assistant":
        _add_answer(message, read)
    elif role == "tool":
        if "tool_call_id" in message:
            read["tool_call_id"] = message["tool_call_id"]
        if parts:
            read["content"] = _plain_text(read["content"])
    for key in ("name", "task"):
        if isinstance(message.get(key), str):
            read[key] = message[key]
    if role == "developer":
        if message.get("tools") is not None:
            raise NotExact("tools in a developer message")
        read["tools"] = None
    return read


def _content(message: Fields, role: str, parts: bool) -> str | list[Any]:
    content = message.get("content")
    if isinstance(content, str) and not (parts or role == "system"):
        return content
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    elif content is None:
        content = []
    if not isinstance(content, list):
        raise NotExact("a content that is neither text nor parts")
    if role == "system":
        stripped = map(_without_billing, content)
        content = [part for part in stripped if part is not None]
    read = [one for part in content if (one := _read_part(part)) is not None]
    # Of strings vLLM drops the empty ones, of parts it keeps them.
    return read if parts else "\n".join(part["text"] for part in read if part["text"])


def _read_part(part: Any) -> dict[str, Any] | None:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict) or not _MEDIA_KEYS.isdisjoint(part):
        raise NotExact("a content part that is no text")
    kind = part.get("type")
    field = _TEXT_FIELDS.get(kind) if isinstance(kind, str) else None
    if field is None:
        raise NotExact("a content part that is no text")
    text = part.get(field)
    if text is None and field in part and kind in _MAY_BE_EMPTY:
        return None
    if not isinstance(text, str):
        raise NotExact("a content part without its text")
    extra = {key: value for key, value in part.items() if key not in _PART_KEYS}
    return {"type": "text", "text": text, **extra}


def _without_billing(part: Any) -> Any:
    """Drop the line that Claude Code puts in front and that differs each time."""
    is_text = isinstance(part, dict) and part.get("type") == "text"
    text = part.get("text") if is_text else part
    if not isinstance(text, str) or not text.startswith(_BILLING_LINE):
        return part
    rest = text.partition("\n")[2]
    if not rest:
        return None
    return {**part, "text": rest} if is_text else rest


def _add_answer(message: Fields, read: dict[str, Any]) -> None:
    calls = message.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise NotExact("tool_calls that are no list")
        if calls:
            read["tool_calls"] = [_read_call(call) for call in calls]
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        if not isinstance(reasoning, str):
            raise NotExact("reasoning that is no text")
        read["reasoning"] = read["reasoning_content"] = reasoning


def _read_call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if (
        not isinstance(function, dict)
        or call.get("type") != "function"
        or not isinstance(call.get("id"), str)
        or not isinstance(function.get("name"), str)
        or not isinstance(function.get("arguments"), str)
    ):
        raise NotExact("a tool call that is no function's")
    arguments = _read_arguments(function["arguments"])
    named = {"arguments": arguments, "name": function["name"]}
    ordered = {"id": call["id"], "function": {**named, **_rest(function, named)}}
    ordered["type"] = "function"
    return {**ordered, **_rest(call, ordered)}


def _read_arguments(text: str) -> dict[str, Any]:
    """Return arguments as an object; anything else counts as an empty one."""
    try:
        arguments = json.loads(text) if text else {}
    except json.JSONDecodeError:
        return {}
    except RecursionError as error:
        raise NotExact("arguments nested too deeply") from error
    return arguments if isinstance(arguments, dict) else {}


def _read_tool(tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if (
        not isinstance(function, dict)
        or tool.get("type", "function") != "function"
        or not isinstance(function.get("name"), str)
        or not isinstance(function.get("description"), str | None)
        or not isinstance(function.get("parameters"), dict | None)
        or not isinstance(function.get("strict"), bool | None)
        or tool.get("defer_loading") is not None
        or function.get("defer_loading") is not None
    ):
        raise NotExact("a tool that is no function")
    read = {key: function.get(key) for key in ("name", "description", "parameters")}
    if function.get("strict") is not None:
        read["strict"] = function["strict"]
    return {"type": "function", "function": read}


def _rest(fields: Fields, known: Fields) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in known}


def _as_system(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] != "developer":
        return message
    kept = {key: value for key, value in message.items() if key != "tools"}
    return {**kept, "role": "system"}


def _plain_text(content: str | list[Any]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content)
