"""Each shape of body that carries a prompt, as the client libraries send it."""

import json
from array import array
from itertools import pairwise
from typing import Any

import pytest

from warmroute.proxy.prompt import Prompt, PromptReader
from warmroute.proxy.prompt.batch import Batch
from warmroute.proxy.prompt.shapes import find_shape
from warmroute.proxy.prompt.transcript import Transcript

PIXELS = "data:image/png;base64," + "A" * 4000
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def read(path: str, body: Any) -> Prompt:
    encoded = json.dumps(body).encode()
    return PromptReader().read(path, b"application/json", b"", encoded)


def text_of(prompt: Prompt) -> bytes:
    assert len(prompt.pieces) == 1
    text = prompt.pieces[0].text
    assert text is not None
    return text


def chat(messages: Any, **fields: Any) -> Prompt:
    body = {"model": "m", "messages": messages, **fields}
    return read("/v1/chat/completions", body)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/chat/completions", "chat"),
        ("/foo/v1/chat/completions", "chat"),
        ("/v1/chat/completions/", "chat"),
        ("/v1/chat/completions?api-version=1", "chat"),
        ("/openai/deployments/x/chat/completions/?a=/v1/score", "chat"),
        ("/v1/completions", "completions"),
        ("/chatty/v1/completions", "completions"),
        ("/v1/responses", "responses"),
        ("/v1/embeddings", "embeddings"),
        ("/v1/classify", "classify"),
        ("/pooling", "pooling"),
        ("/rerank", "rerank"),
        ("/v1/rerank", "rerank"),
        ("/v2/rerank", "rerank"),
        ("/score", "score"),
        ("/v1/score", "score"),
        ("/v1/messages", "messages"),
        ("/v1/messages/count_tokens", "count_tokens"),
        ("/generate", "generate"),
        ("/inference/v1/generate", "generate"),
        ("/tokenize", "tokenize"),
        ("/v1/detokenize", "detokenize"),
        ("/abort_request", "abort_request"),
        ("/v1/chat/completions/render", "none"),
        ("/v1/audio/speech", "none"),
        ("/v1/xcompletions", "none"),
        ("/", "none"),
        ("", "none"),
        ("/" + "x" * 9000 + "/v1/score", "score"),
    ],
)
def test_the_end_of_the_path_names_the_shape(path: str, kind: str) -> None:
    assert read(path, {"model": "m"}).kind == kind
    assert read(path, {"model": "m"}).model == "m"


def test_many_paths_are_matched_and_only_the_last_remembered() -> None:
    """A client that varies its query neither fills memory nor is misread."""
    for index in [*range(1000), 0]:
        assert find_shape(f"/v1/score?n={index}").kind == "score"
        assert find_shape(f"/{index}/chat/completions").kind == "chat"


def test_repr_tells_sizes_and_no_text() -> None:
    batch, transcript = Batch(), Transcript()
    batch.add_text(b"secret")
    transcript.add_message("user", "secret")
    assert repr(batch) == "<Batch [1 kept, 0 bytes spare]>"
    assert repr(transcript) == "<Transcript [3 fields]>"


class TestChat:
    def test_one_text_part_equals_the_bare_text(self) -> None:
        bare = chat([user("hi")])
        assert bare == chat([user([{"type": "text", "text": "hi"}])])
        assert bare == chat([user([{"type": "input_text", "text": "hi"}])])
        assert bare == chat([user(["hi"])])

    def test_parts_do_not_run_together(self) -> None:
        parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
        assert text_of(chat([user(parts)])) != text_of(chat([user("hi")]))

    def test_the_whole_conversation_counts(self) -> None:
        first = [{"role": "system", "content": "s"}, user("a")]
        assert text_of(chat([*first, user("b")])) != text_of(chat([*first, user("c")]))

    def test_prompts_that_end_in_different_modes_are_the_same(self) -> None:
        plain = chat([user("hi")])
        assert plain == chat([user("hi")], add_generation_prompt=False)
        assert plain == chat([user("hi")], temperature=0.3, n=2, logprobs=True)

    @pytest.mark.parametrize(
        "fields",
        [
            {"tools": [WEATHER]},
            {"functions": [WEATHER["function"]]},
            {"documents": [{"text": "d"}]},
            {"chat_template": "{{ messages }}"},
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"reasoning_effort": "low"},
        ],
    )
    def test_what_the_template_renders_is_part_of_the_prompt(
        self, fields: dict[str, Any]
    ) -> None:
        assert text_of(chat([user("hi")], **fields)) != text_of(chat([user("hi")]))

    @pytest.mark.parametrize(
        "message",
        [
            {"role": "developer", "content": "hi"},
            {"role": "user", "content": "hi", "name": "bob"},
            {"role": "tool", "content": "hi", "tool_call_id": "c1"},
            {"role": "user", "content": "hi", "reasoning_content": "r"},
            {"role": "user", "content": "hi", "reasoning": "r"},
            {"role": "user", "content": "hi", "audio": {"id": "a1"}},
            {"role": "user", "content": "hi", "function_call": {"name": "f"}},
            {
                "role": "user",
                "content": "hi",
                "tool_calls": [{"custom": {"name": "f"}}],
            },
            {"role": "user", "content": None},
            {"role": "user"},
            {"role": "user", "content": [{"type": "refusal", "refusal": "hi"}]},
        ],
    )
    def test_each_field_of_a_message_shows(self, message: dict[str, Any]) -> None:
        assert text_of(chat([message])) != text_of(chat([user("hi")]))

    def test_arguments_of_a_tool_call_are_taken_as_they_are(self) -> None:
        def call(arguments: Any) -> bytes:
            function = {"name": "f", "arguments": arguments}
            tool_calls = [{"id": "c", "type": "function", "function": function}]
            message = {"role": "assistant", "content": None, "tool_calls": tool_calls}
            return text_of(chat([message]))

        assert b'{"city": "Rome"}' in call('{"city": "Rome"}')
        assert call('{"city": "Rome"}') != call('{"city":"Rome"}')
        assert b'{"a":1,"b":2}' in call({"b": 2, "a": 1})

    def test_empty_messages_are_an_empty_prompt(self) -> None:
        prompt = chat([])
        assert (prompt.grade, prompt.num_tokens) == ("estimated", 0)
        assert prompt.pieces == ()

    def test_no_messages_is_no_prompt(self) -> None:
        assert read("/v1/chat/completions", {"model": "m"}).grade == "none"


class TestMedia:
    @pytest.mark.parametrize(
        "part",
        [
            {"type": "image_url", "image_url": {"url": PIXELS}},
            {"type": "image_url", "image_url": PIXELS},
            {"type": "input_image", "image_url": PIXELS, "detail": "low"},
            {"type": "input_audio", "input_audio": {"data": PIXELS, "format": "wav"}},
            {"type": "audio_url", "audio_url": {"url": PIXELS}},
            {"type": "video_url", "video_url": {"url": PIXELS}},
            {"type": "file", "file": {"file_data": PIXELS, "filename": "a.pdf"}},
            {"type": "input_file", "file_data": PIXELS},
            {"type": "image", "source": {"type": "base64", "data": PIXELS}},
        ],
    )
    def test_data_enters_as_a_digest(self, part: dict[str, Any]) -> None:
        changed = json.loads(json.dumps(part).replace("AAAA", "AAAB", 1))
        one, two = chat([user([part])]), chat([user([changed])])
        assert one.has_media
        assert text_of(one) != text_of(two)
        assert 0 < one.text_bytes < 100

    def test_an_image_only_prompt_is_a_prompt(self) -> None:
        part = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
        prompt = chat([user([part])])
        assert prompt.grade == "estimated"
        assert prompt.num_tokens >= 1

    def test_a_null_image_is_no_media(self) -> None:
        prompt = chat([user([{"type": "image_url", "image_url": None}])])
        assert not prompt.has_media

    def test_text_alone_has_no_media(self) -> None:
        assert not chat([user("https://x/y.png")]).has_media


class TestTokenIds:
    def test_ids_are_exact(self) -> None:
        prompt = read("/v1/completions", {"model": "m", "prompt": [1, 2, 4294967295]})
        assert prompt.grade == "exact"
        assert prompt.num_tokens == 3
        assert prompt.pieces[0].tokens == array("I", [1, 2, 4294967295])
        assert prompt.pieces[0].text is None

    def test_lists_of_ids_are_prompts_of_their_own(self) -> None:
        prompt = read("/v1/completions", {"prompt": [[1, 2], [3], []]})
        assert [piece.tokens for piece in prompt.pieces] == [
            array("I", [1, 2]),
            array("I", [3]),
        ]
        assert prompt.num_tokens == 3

    @pytest.mark.parametrize("ids", [[], [[]]])
    def test_no_ids_are_an_empty_exact_prompt(self, ids: Any) -> None:
        prompt = read("/v1/completions", {"prompt": ids})
        assert (prompt.grade, prompt.num_tokens, prompt.pieces) == ("exact", 0, ())

    @pytest.mark.parametrize(
        "ids",
        [
            [1, -1],
            [4294967296],
            [1, 2.0],
            [1, True],
            [1, "a"],
            ["a", 1],
            ["a", [1]],
            [[1], 2],
            [1, [2]],
            [[1], "a"],
            [[1, -1]],
            [[[1]]],
            [None],
            {"a": 1},
            5,
            True,
        ],
    )
    def test_what_is_no_list_of_ids_is_left_to_the_engine(self, ids: Any) -> None:
        prompt = read("/v1/completions", {"model": "m", "prompt": ids, "stream": True})
        assert prompt.grade == "none"
        assert prompt.pieces == ()
        assert (prompt.model, prompt.stream) == ("m", True)

    def test_a_million_ids_are_read(self) -> None:
        prompt = read("/v1/completions", {"prompt": [7] * 1_000_000})
        assert prompt.num_tokens == 1_000_000


class TestCompletions:
    def test_a_text_is_taken_as_it_is(self) -> None:
        assert text_of(read("/v1/completions", {"prompt": "héllo"})) == "héllo".encode()

    def test_several_texts_are_several_pieces(self) -> None:
        prompt = read("/v1/completions", {"prompt": ["one", "", "three"]})
        assert [piece.text for piece in prompt.pieces] == [b"one", b"three"]
        assert prompt.num_tokens == sum(piece.num_tokens for piece in prompt.pieces)

    def test_an_empty_text_is_an_empty_prompt(self) -> None:
        prompt = read("/v1/completions", {"prompt": ""})
        assert (prompt.grade, prompt.num_tokens, prompt.pieces) == ("estimated", 0, ())

    def test_null_is_no_prompt(self) -> None:
        assert read("/v1/completions", {"prompt": None}).grade == "none"


class TestResponses:
    PATH = "/v1/responses"

    def test_a_text_equals_one_user_message(self) -> None:
        item = {"type": "message", "role": "user", "content": "hi"}
        assert read(self.PATH, {"input": "hi"}) == read(self.PATH, {"input": [item]})
        del item["type"]
        assert read(self.PATH, {"input": "hi"}) == read(self.PATH, {"input": [item]})

    def test_instructions_and_tools_come_first(self) -> None:
        plain = text_of(read(self.PATH, {"input": "hi"}))
        for fields in ({"instructions": "be"}, {"tools": [WEATHER]}):
            assert text_of(read(self.PATH, {"input": "hi", **fields})).endswith(plain)

    def test_appending_items_extends_the_prompt(self) -> None:
        items = [
            {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
            {"type": "reasoning", "id": "r", "summary": [{"text": "think"}]},
            {
                "type": "function_call",
                "call_id": "c",
                "name": "get_weather",
                "arguments": '{"city": "Rome"}',
            },
            {"type": "function_call_output", "call_id": "c", "output": "sunny"},
            {"type": "function_call_output", "call_id": "c", "output": {"t": 20}},
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": [{"type": "input_image", "image_url": PIXELS}],
            },
            {"type": "item_reference", "id": "msg_1"},
            {"type": "custom_tool_call", "call_id": "c", "name": "n", "input": "x"},
            {
                "type": "message",
                "role": "assistant",
                "content": [
                    {"type": "output_text", "text": "sunny", "annotations": []}
                ],
            },
        ]
        texts = [
            text_of(read(self.PATH, {"input": items[:count]}))
            for count in range(1, len(items) + 1)
        ]
        for shorter, longer in pairwise(texts):
            assert longer.startswith(shorter)
            assert len(longer) > len(shorter)
        assert len(texts[-1]) < 1000

    @pytest.mark.parametrize("field", ["name", "call_id", "arguments", "output"])
    def test_each_field_of_an_item_shows(self, field: str) -> None:
        item = {"type": "x", "name": "n", "call_id": "c", "arguments": "a"}
        item["output"] = "o"
        changed = {**item, field: "other"}
        one = text_of(read(self.PATH, {"input": [item]}))
        assert one != text_of(read(self.PATH, {"input": [changed]}))

    def test_an_earlier_response_pins(self) -> None:
        body = {"input": "hi", "previous_response_id": "resp_1"}
        assert read(self.PATH, body).pin == "resp_1"

    def test_nothing_of_input_is_no_prompt(self) -> None:
        assert read(self.PATH, {"model": "m"}).grade == "none"


class TestEmbeddings:
    @pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/classify", "/pooling"])
    def test_all_four_inputs_and_messages_are_read(self, path: str) -> None:
        assert text_of(read(path, {"input": "a"})) == b"a"
        assert len(read(path, {"input": ["a", "b"]}).pieces) == 2
        assert read(path, {"input": [1, 2]}).grade == "exact"
        assert len(read(path, {"input": [[1, 2], [3]]}).pieces) == 2
        messages = [user("hi")]
        assert read(path, {"messages": messages}).pieces == chat(messages).pieces or (
            text_of(read(path, {"messages": messages})) == text_of(chat(messages))
        )


class TestPairs:
    def test_rerank_has_a_prompt_a_document_with_the_query_in_front(self) -> None:
        body = {"query": "q", "documents": ["one", {"text": "two"}]}
        texts = [piece.text for piece in read("/v1/rerank", body).pieces]
        assert [text[1:2] for text in texts if text] == [b"q", b"q"]
        assert [text[-3:] for text in texts if text] == [b"one", b"two"]

    def test_query_and_document_do_not_run_together(self) -> None:
        one = read("/rerank", {"query": "ab", "documents": ["c"]})
        two = read("/rerank", {"query": "a", "documents": ["bc"]})
        assert text_of(one) != text_of(two)

    @pytest.mark.parametrize(
        ("first", "second", "count"),
        [("a", "b", 1), ("a", ["b", "c"], 2), (["a", "b"], "c", 2), (["a"], ["b"], 1)],
    )
    def test_score_repeats_a_single_side(
        self, first: Any, second: Any, count: int
    ) -> None:
        body = {"text_1": first, "text_2": second}
        assert len(read("/v1/score", body).pieces) == count

    def test_score_pairs_two_lists_in_order(self) -> None:
        body = {"text_1": ["a", "b"], "text_2": ["c", "d"]}
        texts = [piece.text or b"" for piece in read("/score", body).pieces]
        assert [(text[1:2], text[3:4]) for text in texts] == [
            (b"a", b"c"),
            (b"b", b"d"),
        ]

    def test_items_stand_for_documents(self) -> None:
        assert len(read("/v1/score", {"query": "q", "items": ["a", "b"]}).pieces) == 2

    @pytest.mark.parametrize("body", [{"query": "q"}, {"query": "q", "documents": []}])
    def test_no_document_is_no_prompt(self, body: Any) -> None:
        assert read("/rerank", body).grade == "none"

    def test_images_among_the_documents_are_media(self) -> None:
        content = [{"type": "image_url", "image_url": {"url": PIXELS}}]
        body = {"query": "q", "documents": [{"content": content}]}
        assert read("/rerank", body).has_media

    def test_a_long_query_with_many_documents_stays_bounded(self) -> None:
        """The query counts for every document, but is not stored for each."""
        body = {"query": "q" * 500_000, "documents": ["d"] * 5000}
        prompt = read("/rerank", body)
        kept = sum(len(piece.text or b"") for piece in prompt.pieces)
        assert kept <= 5 << 20
        assert prompt.text_bytes == 5000 * 500_003
        assert prompt.num_tokens == pytest.approx(5000 * 500_003 / 4, rel=1e-3)


class TestMessages:
    PATH = "/v1/messages"

    def test_system_text_equals_one_system_block(self) -> None:
        messages = [user("hi")]
        blocks = [
            {"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}}
        ]
        one = read(self.PATH, {"system": "be", "messages": messages})
        assert one == read(self.PATH, {"system": blocks, "messages": messages})
        assert text_of(one) != text_of(read(self.PATH, {"messages": messages}))

    def test_appending_turns_extends_the_prompt(self) -> None:
        tools = [{"name": "f", "input_schema": {"type": "object"}}]
        source = {"type": "base64", "media_type": "image/png", "data": PIXELS}
        turns = [
            user("weather?"),
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "t", "signature": "s"},
                    {"type": "text", "text": "Let me look."},
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
                ],
            },
            user([{"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}]),
            user(
                [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [
                            {"type": "text", "text": "x"},
                            {"type": "image", "source": source},
                        ],
                    }
                ]
            ),
        ]
        body = {"model": "m", "system": "be", "tools": tools, "max_tokens": 9}
        texts = [
            text_of(read(self.PATH, {**body, "messages": turns[:count]}))
            for count in (1, 2, 3, 4)
        ]
        for shorter, longer in pairwise(texts):
            assert longer.startswith(shorter)
        assert len(texts[-1]) < 1000

    def test_counting_tokens_is_no_prompt(self) -> None:
        """It fills no KV cache, so it must not teach the view anything."""
        body = {"model": "m", "messages": [user("hi")]}
        prompt = read("/v1/messages/count_tokens", body)
        assert (prompt.model, prompt.grade, prompt.pieces) == ("m", "none", ())


class TestGenerate:
    PATH = "/generate"

    def test_text_and_ids_are_read(self) -> None:
        assert text_of(read(self.PATH, {"text": "a"})) == b"a"
        assert len(read(self.PATH, {"text": ["a", "b"]}).pieces) == 2
        assert read(self.PATH, {"input_ids": [1, 2]}).grade == "exact"
        assert len(read(self.PATH, {"input_ids": [[1], [2]]}).pieces) == 2
        assert read(self.PATH, {"token_ids": [1, 2]}).num_tokens == 2

    def test_fields_of_the_engine_are_found(self) -> None:
        body = {
            "text": "a",
            "rid": "r1",
            "stream": True,
            "sampling_params": {"max_new_tokens": 7},
        }
        prompt = read(self.PATH, body)
        assert (prompt.pin, prompt.max_tokens, prompt.stream) == ("r1", 7, True)
        assert prompt.wants_usage
        assert not prompt.can_inject_usage

    @pytest.mark.parametrize("field", ["image_data", "video_data", "audio_data"])
    def test_media_separate_equal_ids(self, field: str) -> None:
        plain = read(self.PATH, {"input_ids": [1, 2]})
        one = read(self.PATH, {"input_ids": [1, 2], field: [PIXELS]})
        two = read(self.PATH, {"input_ids": [1, 2], field: ["https://x/y"]})
        assert len({plain.pieces[0].root, one.pieces[0].root, two.pieces[0].root}) == 3
        assert one.has_media
        empty = read(self.PATH, {"input_ids": [1, 2], field: []})
        assert empty == plain


def test_aborting_pins_to_the_backend_of_the_request() -> None:
    prompt = read("/abort_request", {"rid": "r1"})
    assert (prompt.kind, prompt.grade, prompt.pin) == ("abort_request", "none", "r1")


def test_tokenizing_is_no_prompt() -> None:
    prompt = read("/tokenize", {"model": "m", "prompt": "hi"})
    assert (prompt.model, prompt.grade) == ("m", "none")
