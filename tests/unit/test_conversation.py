"""What a template gets of a chat: as vLLM 0.32 hands it over, or nothing at all.

The expectations were read off vLLM itself; tests/engines compares on real chats.
"""

import pytest

from warmroute.adapters.tokens.content_format import takes_parts
from warmroute.adapters.tokens.conversation import (
    merge_developers,
    read_conversation,
    read_tools,
)
from warmroute.adapters.tokens.errors import NotExact

CALL = {
    "type": "function",
    "more": 1,
    "id": "c",
    "function": {"name": "f", "more": 3, "arguments": '{"b": 1, "a": 2}'},
}


def read(message, parts=False):
    return read_conversation([message], parts=parts)[0]


def call(arguments):
    return {**CALL, "function": {"name": "f", "arguments": arguments}}


class TestMessages:
    def test_only_what_templates_get_is_kept(self):
        message = {"role": "user", "content": "x", "foo": 1, "tool_call_id": "t"}
        assert read(message) == {"role": "user", "content": "x"}

    def test_tool_calls_have_their_keys_in_order_and_objects_as_arguments(self):
        made = read({"tool_calls": [CALL], "content": None, "role": "assistant"})
        assert list(made) == ["role", "content", "tool_calls"]
        assert made["content"] == ""
        (one,) = made["tool_calls"]
        assert list(one) == ["id", "function", "type", "more"]
        assert list(one["function"]) == ["arguments", "name", "more"]
        assert one["function"]["arguments"] == {"b": 1, "a": 2}

    @pytest.mark.parametrize("arguments", ["", "nope", "[1]", "4", "null"])
    def test_arguments_that_are_no_object_are_an_empty_one(self, arguments):
        made = read({"role": "assistant", "tool_calls": [call(arguments)]})
        assert made["tool_calls"][0]["function"]["arguments"] == {}

    @pytest.mark.parametrize("calls", [[], None])
    def test_no_tool_calls_are_none(self, calls):
        made = read({"role": "assistant", "content": "c", "tool_calls": calls})
        assert made == {"role": "assistant", "content": "c"}

    @pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
    def test_reasoning_has_both_names_whichever_was_used(self, field):
        made = read({"role": "assistant", "content": "", field: "r"})
        assert (made["reasoning"], made["reasoning_content"]) == ("r", "r")
        assert "reasoning" not in read({"role": "user", "content": "", field: "r"})

    def test_a_tool_s_answer_is_text_in_both_forms(self):
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        for form in (False, True):
            made = read({"role": "tool", "tool_call_id": "1", "content": parts}, form)
            assert made == {"role": "tool", "content": "a\nb", "tool_call_id": "1"}


class TestContents:
    def test_parts_are_joined_by_line_feeds_without_empty_ones(self):
        parts = [
            {"type": "text", "text": "a"},
            "b",
            {"type": "text", "text": ""},
            {"type": "input_text", "text": "c"},
            {"type": "refusal", "refusal": "d"},
            {"type": "thinking", "thinking": "e"},
            {"type": "text", "text": None},
        ]
        assert read({"role": "user", "content": parts})["content"] == "a\nb\nc\nd\ne"

    def test_templates_that_take_parts_get_parts_with_their_own_keys(self):
        parts = [{"type": "input_text", "text": "a", "cache_control": 1}, ""]
        made = read({"role": "user", "content": parts}, parts=True)
        assert made["content"] == [
            {"type": "text", "text": "a", "cache_control": 1},
            {"type": "text", "text": ""},
        ]
        assert read({"role": "assistant"}, parts=True)["content"] == []

    def test_the_line_that_differs_each_time_is_dropped_of_system_messages(self):
        line = "x-anthropic-billing-header: cch=1"
        for role, text in (("system", "rest"), ("user", line + "\nrest")):
            assert read({"role": role, "content": line + "\nrest"})["content"] == text
        assert read({"role": "system", "content": line})["content"] == ""

    @pytest.mark.parametrize(
        "part",
        [
            {"type": "image_url", "image_url": {"url": "http://x"}},
            {"type": "text", "text": "a", "uuid": "u"},
            {"type": "input_audio", "input_audio": {}},
            {"type": "text"},
            {"type": "text", "text": 4},
            {"type": "tool_reference", "name": "f"},
            {"text": "a"},
            {"type": ["text"], "text": "a"},
            4,
        ],
    )
    def test_what_is_not_certainly_text_is_not_exact(self, part):
        with pytest.raises(NotExact):
            read({"role": "user", "content": ["a", part]})


class TestRefusals:
    @pytest.mark.parametrize(
        "message",
        [
            {"content": "x"},
            {"role": 4, "content": "x"},
            {"role": "user", "content": 4},
            {"role": "developer", "content": "x", "tools": []},
            {"role": "assistant", "tool_calls": {"a": 1}},
            {"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]},
            {"role": "assistant", "tool_calls": [{**CALL, "id": None}]},
            {"role": "assistant", "tool_calls": [call({"a": 1})]},
            {"role": "assistant", "tool_calls": [call("[" * 100_000)]},
            {"role": "assistant", "tool_calls": ["f"]},
            {"role": "assistant", "reasoning": 4},
        ],
    )
    def test_what_vllm_may_refuse_or_change_is_not_exact(self, message):
        with pytest.raises(NotExact):
            read(message)

    @pytest.mark.parametrize(
        "tools",
        [
            {"a": 1},
            ["f"],
            [{"type": "web_search"}],
            [{"type": "function", "function": {"description": "no name"}}],
            [{"type": "function", "function": {"name": "f", "parameters": "p"}}],
            [{"type": "function", "function": {"name": "f", "defer_loading": True}}],
        ],
    )
    def test_tools_that_are_no_functions_are_not_exact(self, tools):
        with pytest.raises(NotExact):
            read_tools(tools)


class TestTools:
    def test_they_have_their_keys_in_order_the_missing_ones_as_null(self):
        given = {"x": 1, "function": {"strict": True, "name": "f", "y": 2}}
        (tool,) = read_tools([given]) or ()
        assert list(tool.items()) == [
            ("type", "function"),
            ("function", tool["function"]),
        ]
        assert list(tool["function"].items()) == [
            ("name", "f"),
            ("description", None),
            ("parameters", None),
            ("strict", True),
        ]

    def test_none_and_an_empty_list_are_no_tools(self):
        assert read_tools(None) is None
        assert read_tools([]) is None


class TestDevelopers:
    MESSAGES = (
        {"role": "developer", "content": "a", "tools": None},
        {"role": "user", "content": "q"},
        {"role": "system", "content": "b", "name": "n"},
    )

    def test_they_become_one_system_message_at_the_front(self):
        assert merge_developers(list(self.MESSAGES), "{{ messages }}") == [
            {"role": "system", "content": "a\n\nb"},
            {"role": "user", "content": "q"},
        ]

    def test_a_single_one_at_the_front_stays_where_it_is(self):
        merged = merge_developers(list(self.MESSAGES[:2]), "{{ messages }}")
        assert merged[0] == {"role": "system", "content": "a"}

    @pytest.mark.parametrize("quote", ["'", '"'])
    def test_a_template_that_knows_the_role_gets_it(self, quote):
        source = f"{{% if m.role == {quote}developer{quote} %}}"
        assert merge_developers(list(self.MESSAGES), source) == list(self.MESSAGES)

    def test_without_one_nothing_is_merged(self):
        systems = [{"role": "system", "content": "a"}] * 2
        assert merge_developers(systems, "") is systems


class TestContentFormat:
    @pytest.mark.parametrize(
        "source",
        [
            "{% for m in messages %}{% for p in m['content'] %}x{% endfor %}"
            "{% endfor %}",
            "{% for m in messages %}{% for p in m.content %}x{% endfor %}{% endfor %}",
            "{% set rest = messages[1:] %}{% for m in rest %}"
            "{% for p in m.content | list %}x{% endfor %}{% endfor %}",
            "{% for m in messages %}{% set content = m.content %}"
            "{% for p in content %}x{% endfor %}{% endfor %}",
            "{% macro show(what) %}{% for p in what %}x{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ show(m.content) }}{% endfor %}",
            "{% macro show(what) %}{% for p in what %}x{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ show(what=m['content']) }}{% endfor %}",
        ],
    )
    def test_a_loop_over_the_content_takes_parts(self, source):
        assert takes_parts(source)

    @pytest.mark.parametrize(
        "source",
        [
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            "{% for m in messages %}{% for c in m.tool_calls %}x{% endfor %}"
            "{% endfor %}",
            "{% for x in other %}{% for p in x.content %}y{% endfor %}{% endfor %}",
            "{% macro show(content) %}{% for p in content %}x{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ show(m.role) }}{% endfor %}",
            "{% for a, b in messages %}{% for p in a.content %}x{% endfor %}"
            "{% endfor %}",
            "{% set a = b %}{% set b = a %}{% for m in messages %}{{ m }}{% endfor %}",
            "{% set a = messages %}{% set messages = a %}{{ a }}",
            "{% broken",
        ],
    )
    def test_any_other_template_takes_strings(self, source):
        assert not takes_parts(source)
