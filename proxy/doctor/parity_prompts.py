"""The prompts whose tokens are compared: ours, so that they may be talked about."""

from collections.abc import Mapping

_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city."},
                "days": {"type": "integer", "minimum": 1},
            },
            "required": ["city"],
        },
    },
}
_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Oslo", "days": 2}'},
}
_SYSTEM = {"role": "system", "content": "You are a terse assistant."}
_LONG = " ".join(
    f"Line {number}: the quick brown fox jumps over {number * number} lazy dogs."
    for number in range(60)
)

PROMPTS: Mapping[str, Mapping[str, object]] = {
    "chat": {
        "messages": [
            _SYSTEM,
            {"role": "user", "content": "What is a radix tree?"},
            {"role": "assistant", "content": "A trie whose only children are merged."},
            {"role": "user", "content": "  And why\n\nis it fast?  "},
        ]
    },
    "tools": {
        "messages": [
            {"role": "user", "content": "Will it rain in Oslo?"},
            {"role": "assistant", "content": "", "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": '{"rain": true}'},
            {"role": "user", "content": "And tomorrow?"},
        ],
        "tools": [_TOOL],
    },
    "unicode": {
        "messages": [
            {
                "role": "user",
                "content": "na\u00efve cafe\u0301, \u6771\u4eac, "
                "\u05e9\u05dc\u05d5\u05dd, "
                "\U0001f3f3\ufe0f\u200d\U0001f308 \ufb01 \u00bd \u00a0 \u2167\t1234567",
            }
        ]
    },
    "long": {"messages": [_SYSTEM, {"role": "user", "content": _LONG}]},
    "continue": {
        "messages": [
            {"role": "user", "content": "Count to five."},
            {"role": "assistant", "content": "One, two,"},
        ],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
}
"""Bodies of ``/v1/chat/completions``, but for the model."""
