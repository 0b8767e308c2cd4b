"""Chat completions of the embedded engine over HTTP."""

import json
from typing import Any

import pytest
from unit.fake_generator import FakeEngine, serve

PATH = "/v1/chat/completions"
HI = {"role": "user", "content": "hi"}


async def rendered(messages: list[Any], **fields: Any) -> str:
    """Return the prompt that the engine got for *messages*."""
    engine = FakeEngine()
    async with serve(engine) as served:
        status, answer = await served.post(PATH, {"messages": messages, **fields})
    assert status == 200, answer
    return bytes(engine.requests[0].prompt_ids).decode()


async def test_a_message_is_answered() -> None:
    """The answer has OpenAI's shape."""
    async with serve(FakeEngine()) as served:
        status, answer = await served.post(
            PATH, {"messages": [HI]}, headers={"X-Request-Id": "r-1"}
        )
    assert status == 200
    assert answer["id"] == "chatcmpl-r-1"
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello"},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert answer["usage"]["prompt_tokens"] == 4


async def test_a_stream_tells_the_role_once_a_choice() -> None:
    """The first piece of each choice has the role, the last one the reason."""
    async with serve(FakeEngine("", "a", "b")) as served:
        *chunks, done = await served.stream(PATH, {"messages": [HI], "n": 2})
    assert done == "[DONE]"
    pieces = [json.loads(chunk)["choices"][0] for chunk in chunks]
    for index in (0, 1):
        own = [piece for piece in pieces if piece["index"] == index]
        assert [piece["delta"] for piece in own] == [
            {"role": "assistant", "content": "a"},
            {"content": "b"},
        ]
        assert [piece["finish_reason"] for piece in own] == [None, "stop"]


async def test_token_ids_are_returned_when_asked() -> None:
    """Those of the prompt stand beside the choices, once."""
    body = {"messages": [HI], "return_token_ids": True}
    async with serve(FakeEngine()) as served:
        _, whole = await served.post(PATH, body)
        *chunks, _ = await served.stream(PATH, body)
    assert whole["prompt_token_ids"] == [*b"u:hi"]
    assert whole["choices"][0]["token_ids"] == [65, 66]
    parts = [json.loads(chunk) for chunk in chunks]
    assert [part.get("prompt_token_ids") for part in parts] == [[*b"u:hi"], None]
    assert [part["choices"][0]["token_ids"] for part in parts] == [[65], [66]]


async def test_the_output_may_fill_the_context() -> None:
    """Without a limit of the client, the engine's own is the limit."""
    engine = FakeEngine()
    async with serve(engine) as served:
        await served.post(PATH, {"messages": [HI]})
        await served.post(PATH, {"messages": [HI], "max_tokens": 3})
        await served.post(
            PATH, {"messages": [HI], "max_tokens": 3, "max_completion_tokens": 4}
        )
    assert [one.max_tokens for one in engine.requests] == [None, 3, 4]


async def test_log_probabilities_have_the_shape_of_the_api() -> None:
    """Each token with its bytes, and the likeliest ones in its place."""
    engine = FakeEngine("A")
    async with serve(engine) as served:
        _, answer = await served.post(
            PATH, {"messages": [HI], "logprobs": True, "top_logprobs": 1}
        )
        await served.post(PATH, {"messages": [HI], "logprobs": True})
        await served.post(PATH, {"messages": [HI], "logprobs": False})
    token = {"token": "A", "logprob": -0.5, "bytes": [65]}
    assert answer["choices"][0]["logprobs"] == {
        "content": [{**token, "top_logprobs": [token]}]
    }
    assert [one.logprobs for one in engine.requests] == [1, 0, None]


async def test_parts_of_a_message_are_joined() -> None:
    """Text parts become one text with line feeds, as vLLM does it."""
    parts = [{"type": "text", "text": "a"}, "b", {"type": "input_text", "text": "c"}]
    message = {"role": "user", "content": parts, "refusal": None, "audio": None}
    assert await rendered([message]) == "u:a\nb\nc"


async def test_an_assistant_message_may_hold_calls_alone() -> None:
    """Content is optional beside tool calls, whose arguments become objects."""
    call = {"id": "1", "type": "function", "function": {"name": "f"}}
    for arguments in ('{"a": 1}', "", {"a": 1}, None):
        call["function"] = {"name": "f", "arguments": arguments}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        assert await rendered([HI, message]) == "u:hi|a:"


async def test_tools_reach_the_template() -> None:
    """They are part of the prompt; a choice of tool that changes nothing is fine."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    assert await rendered([HI], tools=[tool], tool_choice="auto") == "1u:hi"
    assert await rendered([HI], tools=[]) == "u:hi"


@pytest.mark.parametrize(
    ("messages", "param", "words"),
    [
        ([], "messages", "at least one message"),
        ([{"content": "x"}], "messages[0].role", "unknown role 'None'"),
        ([{"role": "usr", "content": "x"}], "messages[0].role", "did you mean 'user'"),
        ([HI, {"role": "user"}], "messages[1].content", "required"),
        ([{"role": "user", "content": 3}], "messages[0].content", "not int"),
        ([{"role": "user", "content": [3]}], "messages[0].content[0]", "not int"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "messages[0].content[0]",
            "the model reads text only",
        ),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            "messages[0].content[0].text",
            "must be a string",
        ),
        ([{**HI, "audio": {"id": "a"}}], "messages[0].audio", "not supported"),
        ([{**HI, "tool_calls": 1}], "messages[0].tool_calls", "not int"),
        ([{**HI, "tool_calls": [{}]}], "messages[0].tool_calls[0]", "a function"),
        (
            [{**HI, "tool_calls": [{"function": {"arguments": "{"}}]}],
            "messages[0].tool_calls[0].function.arguments",
            "JSON object in a string",
        ),
        ([{"role": "tool", "content": "x"}], "messages", "no tools here"),
        (["hi"], "messages[0]", "expected `object`"),
        ("hi", "messages", "expected `array`"),
        (None, "messages", "required"),
    ],
)
async def test_a_wrong_message_is_refused_by_its_place(
    messages: Any, param: str, words: str
) -> None:
    """The error names the field, what is wrong with it, and what is allowed."""
    async with serve(FakeEngine()) as served:
        status, answer = await served.post(PATH, {"messages": messages})
    assert status == 400
    assert answer["error"]["param"] == param
    assert words in answer["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": "f"}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"messages": [{"role": "user", "content": "x" * 99}]}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": 999}, "max_completion_tokens"),
        ({"logprobs": 2}, "logprobs"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"add_special_tokens": True}, "add_special_tokens"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"prompt": "x"}, "prompt"),
    ],
)
async def test_a_wrong_field_is_refused_by_name(
    fields: dict[str, Any], param: str
) -> None:
    """What would change the answer and cannot be done is never ignored."""
    async with serve(FakeEngine()) as served:
        status, answer = await served.post(PATH, {"messages": [HI], **fields})
    assert status == 400
    assert answer["error"]["param"] == param
    if param != "messages":
        assert param in answer["error"]["message"]
