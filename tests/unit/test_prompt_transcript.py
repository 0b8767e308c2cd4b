"""Properties of the canonical bytes, against a naive model of a chat."""

import json
import re
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from warmroute.proxy.prompt import PromptReader
from warmroute.proxy.prompt.batch import Batch
from warmroute.proxy.prompt.shapes import find_shape
from warmroute.proxy.prompt.transcript import (
    ARGUMENTS,
    CALL,
    FIELD,
    MEDIA,
    PART,
    ROLE,
    TEXT,
    VALUE,
    sort_json,
)

Chat = list[dict[str, Any]]

texts = st.text(alphabet=st.sampled_from('ab\x00\x01\x1f\xff\ufffe\U0010ffff"\\{}'))
text_parts = st.fixed_dictionaries({"type": st.just("text"), "text": texts})
image_parts = st.fixed_dictionaries(
    {
        "type": st.just("image_url"),
        "image_url": st.fixed_dictionaries({"url": texts}),
    }
)
calls = st.fixed_dictionaries(
    {
        "id": texts,
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": texts, "arguments": texts}),
    }
)
messages = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "tool", "a", ""]),
        "content": st.none() | texts | st.lists(text_parts | image_parts, max_size=3),
    },
    optional={
        "name": texts,
        "tool_call_id": texts,
        "reasoning_content": texts.filter(bool),
        "tool_calls": st.lists(calls, max_size=2),
    },
)
PROMPT_FIELDS = (
    *("tools", "functions", "documents"),
    *("chat_template", "chat_template_kwargs", "reasoning_effort"),
)
chats = st.lists(messages, min_size=1, max_size=4)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=8,
)


def to_bytes(chat: Chat, **fields: Any) -> bytes:
    body = json.dumps({"model": "m", "messages": chat, **fields}).encode()
    prompt = PromptReader().read("/v1/chat/completions", b"", b"", body)
    assert prompt.grade == "estimated"
    text = prompt.pieces[0].text
    assert text is not None
    return text


def meaning(chat: Chat) -> list[Any]:
    """Naive model: what a chat says, with a bare text equal to one text part."""
    said = []
    for message in chat:
        content = message["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        rest = {key: message[key] for key in message if key != "content"}
        if not rest.get("tool_calls", True):
            del rest["tool_calls"]
        said.append((content or [], rest))
    return said


@given(chats)
def test_appending_a_message_extends_the_bytes(chat: Chat) -> None:
    whole = to_bytes(chat)
    lengths = []
    for count in range(1, len(chat) + 1):
        front = to_bytes(chat[:count])
        assert whole.startswith(front)
        lengths.append(len(front))
    assert lengths == sorted(set(lengths))


@given(chats, chats)
def test_bytes_are_equal_only_where_chats_say_the_same(one: Chat, two: Chat) -> None:
    assert (to_bytes(one) == to_bytes(two)) == (meaning(one) == meaning(two))


@given(chats)
def test_a_naive_parser_reads_the_chat_back(chat: Chat) -> None:
    """So two chats that differ in meaning cannot share their bytes."""
    assert parse(to_bytes(chat)) == [hide_media(*said) for said in meaning(chat)]


@given(
    chats, st.fixed_dictionaries({}, optional={"tools": values, "functions": values})
)
def test_the_short_way_gives_the_bytes_of_the_long_one(
    chat: Chat, fields: dict[str, Any]
) -> None:
    body = json.dumps({"model": "m", "messages": chat, **fields}).encode()
    shape = find_shape("/v1/chat/completions")
    assert shape.join is not None
    decoded, batch = shape.decode(body), Batch()
    shape.collect(decoded, batch)
    text = shape.join(decoded)
    is_plain = not fields and all(
        type(message["content"]) is str and message.keys() <= {"role", "content"}
        for message in chat
    )
    assert (text is not None) == is_plain
    if is_plain:
        assert batch.kept == [text]


def hide_media(content: Any, rest: Any) -> tuple[list[Any], dict[str, Any]]:
    return [part.get("text", part["type"]) for part in content], rest


def parse(data: bytes) -> list[Any]:
    """Naive inverse of the canonical bytes, for what the strategies make."""
    fields = re.findall(rb"([\xf5-\xff])([^\xf5-\xff]*)", data)
    assert b"".join(tag + value for tag, value in fields) == data
    chat: list[Any] = []
    name = ""
    content: list[str] = []
    rest: dict[str, Any] = {}
    for tag, raw in fields:
        value = raw.decode()
        if tag == ROLE:
            content, rest = [], {"role": value}
            chat.append((content, rest))
        elif tag in (TEXT, PART):
            content.append(value)
        elif tag == CALL:
            rest.setdefault("tool_calls", []).append({"id": value, "type": "function"})
        elif tag == FIELD:
            name = value
        elif tag == VALUE:
            rest["reasoning_content" if name == "reasoning" else name] = value
        elif tag == ARGUMENTS:
            function = {"name": name, "arguments": value}
            rest["tool_calls"][-1]["function"] = function
        else:
            assert tag == MEDIA
            assert len(value) == 32
    return chat


@given(chats, values)
def test_whitespace_escapes_and_key_order_do_not_show(chat: Chat, value: Any) -> None:
    fields = {"messages": chat, "tools": [{"name": "f", "parameters": value}]}
    compact = json.dumps(fields, separators=(",", ":"), ensure_ascii=True)
    spacious = json.dumps(_reverse(fields), indent=3, ensure_ascii=False)
    reader = PromptReader()
    one = reader.read("/v1/chat/completions", b"", b"", compact.encode())
    two = reader.read("/v1/chat/completions", b"", b"", spacious.encode())
    assert one == two
    assert one.grade == "estimated"


def _reverse(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _reverse(value[key]) for key in reversed(value)}
    if isinstance(value, list):
        return [_reverse(item) for item in value]
    return value


@given(chats, chats)
def test_tools_come_first_and_keep_their_order(one: Chat, two: Chat) -> None:
    tools = [{"name": "f"}, {"name": "g"}]
    front = to_bytes(one, tools=tools).removesuffix(to_bytes(one))
    assert front
    assert to_bytes(two, tools=tools).startswith(front)
    assert to_bytes(two, tools=tools[::-1]) != to_bytes(two, tools=tools)
    assert to_bytes(two, tools=[]) == to_bytes(two, tools=None) == to_bytes(two)


def test_remembered_tools_equal_those_sorted_anew() -> None:
    for count in (1, 20, 5000):
        for _ in range(2):
            tools = [{"name": f"f{i}", "a": 1} for i in range(count)]
            raw = msgspec.Raw(json.dumps(tools, indent=1).encode())
            naive = json.dumps(tools, sort_keys=True, separators=(",", ":"))
            assert sort_json(raw) == naive.encode()


def test_the_memory_of_tools_is_bounded() -> None:
    """Old entries go, and an evicted list is still sorted rightly."""
    for index in [*range(300), 0]:
        raw = msgspec.Raw(json.dumps([{"name": "f" * 80, "a": index}]).encode())
        expected = '[{"a":%d,"name":"%s"}]' % (index, "f" * 80)  # noqa: UP031
        assert sort_json(raw) == expected.encode()
