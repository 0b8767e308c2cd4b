"""The reader: fields around the prompt, robustness, and learning."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.policies.kv.blocks import root_hash
from warmroute.proxy.config import ModelConfig
from warmroute.proxy.prompt import Prompt, PromptReader

CHAT = "/v1/chat/completions"
JSON = b"application/json"
HI = [{"role": "user", "content": "hi"}]
PICTURE = [
    {"type": "text", "text": "a" * 4000},
    {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
]
PATHS = [
    CHAT,
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/generate",
    "/abort_request",
    "/v1/responses/resp_1/cancel",
    "/v1/models",
]


def read_bytes(body: bytes, path: str = CHAT) -> Prompt:
    return PromptReader().read(path, JSON, b"", body)


def read(path: str = CHAT, **fields: Any) -> Prompt:
    return read_bytes(
        json.dumps({"model": "m", "messages": HI, **fields}).encode(), path
    )


class TestUsage:
    def test_a_plain_answer_carries_usage(self) -> None:
        prompt = read()
        assert (prompt.stream, prompt.wants_usage) == (False, True)
        assert not prompt.can_inject_usage

    def test_a_stream_without_options_may_be_asked_for_usage(self) -> None:
        for path in (CHAT, "/v1/completions"):
            prompt = read(path, stream=True, prompt="hi")
            assert (prompt.stream, prompt.wants_usage) == (True, False)
            assert prompt.can_inject_usage

    @pytest.mark.parametrize(
        ("options", "wants"),
        [
            ({"include_usage": True}, True),
            ({"include_usage": False}, False),
            ({}, False),
            (None, False),
            ("x", False),
        ],
    )
    def test_options_that_are_there_are_left_alone(
        self, options: Any, wants: bool
    ) -> None:
        prompt = read(stream=True, stream_options=options)
        assert prompt.wants_usage is wants
        assert not prompt.can_inject_usage

    @pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/generate"])
    def test_other_streams_carry_usage_anyway(self, path: str) -> None:
        prompt = read(path, stream=True)
        assert prompt.wants_usage
        assert not prompt.can_inject_usage

    @pytest.mark.parametrize("value", [False, None, 0, "no", [], {}, 2])
    def test_other_values_of_stream_mean_no_stream(self, value: Any) -> None:
        assert not read(stream=value).stream


class TestFields:
    @pytest.mark.parametrize(
        ("fields", "session"),
        [
            ({}, None),
            ({"session_id": "s"}, "s"),
            ({"session_params": {"id": "p"}}, "p"),
            ({"prompt_cache_key": "k"}, "k"),
            ({"conversation": "c"}, "c"),
            ({"user": "u"}, "u"),
            ({"session_id": "s", "prompt_cache_key": "k", "user": "u"}, "s"),
            ({"session_params": {"id": "p"}, "user": "u"}, "p"),
            ({"prompt_cache_key": "k", "conversation": "c"}, "k"),
            ({"conversation": "c", "user": "u"}, "c"),
            ({"conversation": {"id": "c"}, "user": "u"}, "c"),
            ({"user": "u", "metadata": {"session_id": "x"}}, "u"),
            ({"metadata": {"user_id": "x", "session_id": "y"}}, "y"),
            ({"metadata": {"user_id": "x"}}, "x"),
            ({"session_id": "", "user": "u"}, "u"),
            ({"session_id": 5, "user": ["u"], "metadata": 3}, "u"),
            ({"session_id": {"a": 1}, "conversation": {"id": 3}}, None),
            ({"user": None, "metadata": {"session_id": None}}, None),
        ],
    )
    def test_the_most_specific_session_key_wins(
        self, fields: dict[str, Any], session: str | None
    ) -> None:
        prompt = read(**fields)
        assert prompt.session == session
        assert prompt.grade == "estimated"

    def test_the_user_is_not_part_of_the_prompt(self) -> None:
        assert read(user="a").pieces == read(user="b").pieces

    def test_a_user_named_in_the_text_is_not_a_session(self) -> None:
        message = {"role": "user", "content": '"user":"eve","session_id":"x"'}
        assert read(messages=[message]).session is None

    @pytest.mark.parametrize(
        ("fields", "limit"),
        [
            ({"max_tokens": 5}, 5),
            ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
            ({"max_output_tokens": 7}, 7),
            ({"sampling_params": {"max_new_tokens": 8}}, 8),
            ({"max_tokens": True}, None),
            ({"max_tokens": "5"}, None),
            ({"max_tokens": -1}, None),
            ({"max_tokens": 10**40}, None),
            ({"sampling_params": [1]}, None),
        ],
    )
    def test_the_bound_on_the_answer_is_found(
        self, fields: dict[str, Any], limit: int | None
    ) -> None:
        assert read(**fields).max_tokens == limit

    @pytest.mark.parametrize("rid", ["r", ["r", "s"]])
    def test_a_request_id_pins(self, rid: Any) -> None:
        assert read("/generate", text="a", rid=rid).pin == "r"

    @pytest.mark.parametrize(
        ("path", "pin"),
        [
            ("/v1/responses/resp_1", "resp_1"),
            ("/x/v1/responses/resp_1/cancel?y=1", "resp_1"),
            ("/v1/responses/resp_1/", "resp_1"),
            ("/v1/responses/input_tokens", None),
            ("/v1/models", None),
        ],
    )
    def test_a_response_named_in_the_path_pins(
        self, path: str, pin: str | None
    ) -> None:
        assert read_bytes(b"", path).pin == pin
        assert read_bytes(b"{}", path).pin == pin


class TestRoot:
    def test_model_and_grade_make_the_root(self) -> None:
        assert read().pieces[0].root == root_hash("m", grade="estimated")
        exact = read("/v1/completions", prompt=[1])
        assert exact.pieces[0].root == root_hash("m", grade="exact")

    def test_whatever_separates_caches_separates_roots(self) -> None:
        variants: list[dict[str, Any]] = [
            {},
            {"model": "n"},
            {"model": "n" * 1000},
            {"model": None},
            {"cache_salt": "s"},
            {"lora_path": "s"},
            {"lora_path": ["s", None]},
            {"extra_key": "s"},
            {"cache_salt": "s", "lora_path": "s"},
        ]
        reader, roots = PromptReader(), set()
        for fields in variants:
            body = json.dumps({"model": "m", "messages": HI, **fields}).encode()
            roots.add(reader.read(CHAT, JSON, b"", body).pieces[0].root)
        assert len(roots) == len(variants)

    def test_salt_and_adapter_reach_the_root_by_name(self) -> None:
        root = read(cache_salt="s", lora_path="l").pieces[0].root
        assert root == root_hash("m", lora="l", salt="s", grade="estimated")

    def test_empty_separators_count_as_absent(self) -> None:
        assert read(cache_salt="", lora_path=None, extra_key="") == read()

    def test_remembered_roots_are_bounded_and_right(self) -> None:
        reader = PromptReader()
        for index in [*range(1500), 0]:
            body = json.dumps({"model": f"m{index}", "prompt": [1]}).encode()
            prompt = reader.read("/v1/completions", JSON, b"", body)
            assert prompt.pieces[0].root == root_hash(f"m{index}")


class TestBounds:
    def test_64_prompts_are_kept_and_the_rest_count(self) -> None:
        prompt = read("/v1/completions", prompt=["abcd" * 10] * 1000)
        assert len(prompt.pieces) == 64
        assert prompt.num_tokens == 10_000
        exact = read("/v1/completions", prompt=[[1, 2, 3]] * 1000)
        assert len(exact.pieces) == 64
        assert exact.num_tokens == 3000

    def test_a_prompt_of_one_byte_is_one_token(self) -> None:
        assert read("/v1/completions", prompt="a").num_tokens == 1

    def test_a_megabyte_is_kept_whole(self) -> None:
        prompt = read("/v1/completions", prompt="a" * (1 << 20))
        assert prompt.num_tokens == 1 << 18
        assert prompt.pieces[0].text == b"a" * (1 << 20)


class TestRobustness:
    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"null",
            b"[]",
            b"[" * 200_000,
            b'{"messages":' + b"[" * 200_000,
            b'{"tools":' + b'{"a":' * 200_000,
            b"\x00\xff\xfe",
            b'"text"',
            b"5",
        ],
    )
    def test_what_is_no_object_gives_no_prompt(self, body: bytes) -> None:
        for path in PATHS[:-2]:
            prompt = read_bytes(body, path)
            assert (prompt.grade, prompt.model, prompt.pieces) == ("none", None, ())

    @pytest.mark.parametrize(
        "rest",
        [
            b'"messages":5',
            b'"messages":[5]',
            b'"messages":[{"role":1}]',
            b'"messages":[{"role":"user","content":{"a":1}}]',
            b'"messages":[{"role":"user","content":"\\ud800"}]',
            b'"messages":[{"role":"user","content":"\xff"}]',
            b'"temperature":NaN',
            b'"messages":[{"role":"user","content":"hi"}],"top_p":Infinity',
            b'"messages":[{"role":"user","content":"hi"}],"tools":[1'
            + b"0" * 5000
            + b"]",
            b'"messages":[{"role":"user","content":[{"type":[]}]}]',
        ],
    )
    def test_model_and_stream_survive_a_prompt_that_cannot_be_read(
        self, rest: bytes
    ) -> None:
        prompt = read_bytes(b'{"model":"m","stream":true,' + rest + b"}")
        assert prompt.grade == "none"
        assert prompt.pieces == ()
        assert (prompt.model, prompt.stream) == ("m", True)
        assert not prompt.can_inject_usage

    @pytest.mark.parametrize(
        "field", ["user", "metadata", "stream_options", "max_tokens", "rid", "model"]
    )
    @pytest.mark.parametrize("value", [5, "x", [1], {"a": {"b": []}}, None, 1.5, True])
    def test_wrong_types_around_the_prompt_do_not_cost_it(
        self, field: str, value: Any
    ) -> None:
        prompt = read(**{field: value})
        assert prompt.grade == "estimated"
        assert prompt.num_tokens == 2

    def test_a_surrogate_in_the_model_is_replaced(self) -> None:
        """The name must be encodable, since it ends up in labels and logs."""
        prompt = read_bytes(b'{"model":"m\\ud800","prompt":NaN}')
        assert prompt.model == "m?"

    def test_the_last_of_two_equal_keys_counts(self) -> None:
        body = b'{"model":"a","prompt":"x","model":"b","prompt":"y"}'
        prompt = read_bytes(body, "/v1/completions")
        assert prompt.model == "b"
        assert prompt.pieces[0].text == b"y"

    def test_nul_bytes_are_text(self) -> None:
        prompt = read_bytes(b'{"prompt":"a\\u0000b"}', "/v1/completions")
        assert prompt.pieces[0].text == b"a\x00b"

    def test_compressed_bodies_are_not_opened(self) -> None:
        body = json.dumps({"model": "m", "messages": HI}).encode()
        for encoding in (b"gzip", b"deflate", b"br", b"x"):
            prompt = PromptReader().read(CHAT, JSON, encoding, body)
            assert (prompt.kind, prompt.grade, prompt.model) == ("chat", "none", None)
        for encoding in (b"", b"identity", b" Identity "):
            assert PromptReader().read(CHAT, JSON, encoding, body).model == "m"

    @pytest.mark.parametrize("content_type", [b"", b"text/plain", b"application/JSON"])
    def test_json_under_another_type_is_read(self, content_type: bytes) -> None:
        body = json.dumps({"model": "m", "messages": HI}).encode()
        assert PromptReader().read(CHAT, content_type, b"", body).num_tokens == 2

    @given(st.sampled_from(PATHS), st.binary(max_size=200), st.binary(max_size=40))
    def test_any_bytes_are_survived(
        self, path: str, body: bytes, content_type: bytes
    ) -> None:
        for kind in (JSON, content_type, b"multipart/form-data; boundary=x"):
            assert PromptReader().read(path, kind, b"", body).grade == "none"

    @given(st.data(), st.sampled_from(PATHS))
    def test_damaged_bodies_are_survived(self, data: st.DataObject, path: str) -> None:
        """One cut, one inserted run: the reader answers, and sums agree."""
        body = json.dumps(_everything()).encode()
        start = data.draw(st.integers(0, len(body)))
        end = data.draw(st.integers(start, min(len(body), start + 30)))
        patch = data.draw(
            st.binary(max_size=6)
            | st.sampled_from([b"null", b'"x"', b"[]", b"{}", b"-1", b"NaN", b"true"])
        )
        prompt = read_bytes(body[:start] + patch + body[end:], path)
        assert prompt.num_tokens == sum(piece.num_tokens for piece in prompt.pieces)

    @given(
        st.sampled_from(PATHS),
        st.sampled_from(["messages", "prompt", "input", "text", "documents", "system"]),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["role", "content", "type", "text", "tool_calls"]),
                    inner,
                    max_size=3,
                )
            ),
            max_leaves=6,
        ),
    )
    def test_any_json_in_place_of_a_prompt_is_survived(
        self, path: str, key: str, value: Any
    ) -> None:
        body = json.dumps({"model": "m", "stream": True, key: value}).encode()
        prompt = read_bytes(body, path)
        assert (prompt.model, prompt.stream) == ("m", True)


def _everything() -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    parts = [
        {"type": "text", "text": "é\n"},
        {"type": "image_url", "image_url": {"url": "https://x"}},
    ]
    return {
        "model": "m",
        "messages": [*HI, {"role": "user", "content": parts, "tool_calls": [call]}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "prompt": [1, 2, 3],
        "input": ["a", "b"],
        "query": "q",
        "documents": ["d", {"text": "e"}],
        "text": "t",
        "system": [{"type": "text", "text": "s"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "metadata": {"user_id": "u"},
        "rid": "r",
        "max_tokens": 5,
    }


class TestShortWay:
    """Plain chats and single texts are read in fewer steps, to the same result."""

    @given(
        st.lists(
            st.fixed_dictionaries(
                {"role": st.sampled_from(["system", "user", "x"]), "content": st.text()}
            ),
            max_size=3,
        ),
        st.fixed_dictionaries(
            {},
            optional={
                "model": st.sampled_from(["m", "n", "", "n" * 300, None, 5, ["m"]]),
                "stream": st.sampled_from([True, False, 1]),
                "user": st.just("u"),
                "max_tokens": st.sampled_from([5, -1, None]),
                "cache_salt": st.sampled_from(["s", "", None]),
                "lora_path": st.just("l"),
                "extra_key": st.just("k"),
                "rid": st.just("r"),
            },
        ),
    )
    def test_a_plain_chat_equals_the_same_read_the_long_way(
        self, messages: list[dict[str, str]], fields: dict[str, Any]
    ) -> None:
        """Embeddings take messages, too, and know no short way."""
        reader = PromptReader()
        teach(reader, "m")
        for model in ("m", "n", ""):  # so that their roots are known
            plain = json.dumps({"model": model, "messages": HI}).encode()
            reader.read(CHAT, JSON, b"", plain)
        body = json.dumps({"messages": messages, **fields}).encode()
        short = reader.read(CHAT, JSON, b"", body)
        long = reader.read("/v1/embeddings", JSON, b"", body)
        long.kind = "chat"
        long.wants_usage = short.wants_usage
        long.can_inject_usage = short.can_inject_usage
        assert short == long

    @given(st.text())
    def test_one_text_equals_a_list_of_it(self, text: str) -> None:
        assert read("/v1/completions", prompt=text) == read(
            "/v1/completions", prompt=[text]
        )

    def test_a_text_part_takes_the_long_way_to_the_same_prompt(self) -> None:
        parts = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
        assert read(messages=parts) == read()


def teach(reader: PromptReader, model: str) -> None:
    reader.learn(Prompt("chat", model, "estimated", text_bytes=80_000), 40_000)


class TestLearning:
    def test_a_prompt_carries_the_estimate_it_was_read_with(self) -> None:
        reader = PromptReader()
        body = json.dumps({"model": "m", "messages": HI}).encode()
        before = reader.read(CHAT, JSON, b"", body)
        assert before.bytes_per_token == 4.0
        teach(reader, "m")
        after = reader.read(CHAT, JSON, b"", body)
        assert after.bytes_per_token == reader.bytes_per_token("m") < 2.2
        assert before.bytes_per_token == 4.0

    def test_requests_under_way_at_once_all_teach(self) -> None:
        """Those read before the first report of a model included."""
        together, apart = PromptReader(), PromptReader()
        body = json.dumps({"model": "m", "prompt": "a" * 40_000}).encode()
        for prompt in [
            together.read("/v1/completions", JSON, b"", body) for _ in range(3)
        ]:
            together.learn(prompt, 20_000)
        for _ in range(3):
            apart.learn(apart.read("/v1/completions", JSON, b"", body), 20_000)
        assert together.bytes_per_token("m") == apart.bytes_per_token("m")

    def test_a_request_from_before_a_change_of_tokenizer_teaches_nobody(self) -> None:
        reader = PromptReader([ModelConfig(name="m")])
        teach(reader, "m")
        body = json.dumps({"model": "m", "prompt": "a" * 40_000}).encode()
        prompt = reader.read("/v1/completions", JSON, b"", body)
        reader.configure([ModelConfig(name="m", tokenizer="engine")])
        reader.learn(prompt, 20_000)
        assert reader.bytes_per_token("m") == 4.0

    def test_reports_change_the_estimate_of_later_prompts(self) -> None:
        reader = PromptReader()
        body = json.dumps({"model": "m", "prompt": "a" * 40_000}).encode()
        before = reader.read("/v1/completions", JSON, b"", body)
        assert before.num_tokens == 10_000
        for _ in range(50):
            reader.learn(before, 20_000)
        after = reader.read("/v1/completions", JSON, b"", body)
        assert after.num_tokens == pytest.approx(20_000, rel=0.02)
        assert reader.bytes_per_token("m") == pytest.approx(2.0, rel=0.02)
        assert reader.bytes_per_token("other") == 4.0

    @pytest.mark.parametrize(
        "prompt",
        [
            Prompt("completions", "m", "exact", text_bytes=40_000),
            Prompt("chat", "m", "none", text_bytes=40_000),
            Prompt("chat", "m", "estimated", has_media=True, text_bytes=40_000),
            Prompt("responses", "m", "estimated", pin="resp_1", text_bytes=40_000),
        ],
    )
    def test_prompts_with_more_than_their_text_do_not_teach(
        self, prompt: Prompt
    ) -> None:
        reader = PromptReader()
        reader.learn(prompt, 40_000)
        assert reader.bytes_per_token("m") == 4.0

    @pytest.mark.parametrize(
        ("path", "fields"),
        [
            ("/v1/completions", {"prompt": [1] * 1000}),
            ("/v1/responses", {"input": "a" * 4000, "previous_response_id": "resp_1"}),
            (CHAT, {"messages": [{"role": "user", "content": PICTURE}]}),
        ],
    )
    def test_nor_do_they_once_the_model_is_known(
        self, path: str, fields: dict[str, Any]
    ) -> None:
        reader = PromptReader()
        teach(reader, "m")
        before = reader.bytes_per_token("m")
        body = json.dumps({"model": "m", **fields}).encode()
        prompt = reader.read(path, JSON, b"", body)
        assert prompt.pieces
        reader.learn(prompt, 40_000)
        assert reader.bytes_per_token("m") == before

    def test_dropped_prompts_teach_too(self) -> None:
        reader = PromptReader()
        body = json.dumps({"model": "m", "prompt": ["a" * 1000] * 100}).encode()
        prompt = reader.read("/v1/completions", JSON, b"", body)
        for _ in range(50):
            reader.learn(prompt, 25_000)
        assert reader.bytes_per_token("m") == pytest.approx(4.0)


def test_a_changed_tokenizer_is_learned_anew() -> None:
    """A reload keeps the estimates of the models that stay as they are."""
    reader = PromptReader([ModelConfig(name="a"), ModelConfig(name="b")])
    for name in ("a", "b"):
        teach(reader, name)
    reader.configure([ModelConfig(name="a", tokenizer="engine"), ModelConfig(name="b")])
    assert reader.bytes_per_token("a") == 4.0
    assert reader.bytes_per_token("b") < 2.2


def test_repr_tells_what_is_held() -> None:
    assert repr(PromptReader()) == "<PromptReader [<Density [0 models]>]>"
