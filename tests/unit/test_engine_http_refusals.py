"""Bad input to the embedded engine's server gets clear errors."""

import logging
from io import BytesIO
from typing import Any

import aiohttp
import pytest
from unit.fake_generator import FakeEngine, serve

from warmroute.adapters.embedded.engine.stream import Delta
from warmroute.adapters.embedded.server.body import MAX_BODY_BYTES
from warmroute.adapters.embedded.server.choice import Choice
from warmroute.adapters.embedded.server.completions import CompletionShape
from warmroute.adapters.embedded.server.openai_fields import BORNE, UNSUPPORTED

PATH = "/v1/completions"


@pytest.mark.parametrize(
    ("fields", "param", "code", "words"),
    [
        ({"max_tokens": -1}, "max_tokens", "invalid_parameter", "-1"),
        ({"max_tokens": 64}, "max_tokens", "context_length_exceeded", "64"),
        ({"max_tokens": "9"}, "max_tokens", "invalid_value", "expected `int"),
        ({"max_tokens": 1.5}, "max_tokens", "invalid_value", "expected `int"),
        ({"n": 9}, "n", "invalid_parameter", "1 to 8"),
        ({"n": 0}, "n", "invalid_parameter", "1 to 8"),
        ({"n": True}, "n", "invalid_value", "expected `int`"),
        ({"temperature": -0.1}, "temperature", "invalid_parameter", "-0.1"),
        ({"top_p": 0}, "top_p", "invalid_parameter", "above 0"),
        ({"top_p": 1.01}, "top_p", "invalid_parameter", "1.01"),
        ({"stop": [""]}, "stop", "invalid_parameter", "one character"),
        ({"stop": ["a"] * 17}, "stop", "invalid_parameter", "17"),
        ({"stop": [1]}, "stop[0]", "invalid_value", "expected `str`"),
        ({"seed": 1 << 64}, "seed", "invalid_value", "18446744073709551616"),
        ({"priority": 1 << 63}, "priority", "invalid_value", "9223372036854775808"),
        ({"logprobs": 21}, "logprobs", "invalid_parameter", "21"),
        ({"stream": "yes"}, "stream", "invalid_value", "expected `bool`"),
        ({"stream_options": {"x": 1}}, "stream_options", "invalid_value", "`x`"),
        ({"prompt": ""}, "prompt", "empty_prompt", "no tokens"),
        ({"prompt": []}, "prompt", "invalid_value", "at least one"),
        ({"prompt": [[]]}, "prompt", "empty_prompt", "no tokens"),
        ({"prompt": "x" * 64}, "prompt", "context_length_exceeded", "64 tokens"),
        ({"prompt": [256]}, "prompt", "token_out_of_vocabulary", "256"),
        ({"prompt": [-1]}, "prompt", "token_out_of_vocabulary", "-1"),
        ({"prompt": [1, "x"]}, "prompt", "invalid_value", "list of token ids"),
        ({"prompt": ["x", 1]}, "prompt", "invalid_value", "list of texts"),
        ({"prompt": [[1], "x"]}, "prompt", "invalid_value", "lists of token ids"),
        ({"prompt": [{"a": 1}]}, "prompt", "invalid_value", "list"),
        ({"prompt": 7}, "prompt", "invalid_value", "expected `str | array`"),
        ({"prompt": ["x"] * 129}, "prompt", "invalid_value", "129"),
        ({"prompt": None}, "prompt", "missing_required_parameter", "required"),
        ({"topp": 0.5}, "topp", "unknown_parameter", "did you mean 'top_p'"),
        ({"echo": True}, "echo", "unsupported_parameter", "send false"),
        ({"top_k": 5}, "top_k", "unsupported_parameter", "send 0 or -1"),
        ({"suffix": "end"}, "suffix", "unsupported_parameter", "leave it out"),
        ({"best_of": 2}, "best_of", "unsupported_parameter", "send 1"),
        ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params", None, "not supported"),
        ({"kv_budget": 1}, "kv_budget", "invalid_value", "expected `object"),
        (
            {"kv_budget": {"tokens": 32}},
            "kv_budget.method",
            "missing_required_parameter",
            "required",
        ),
        (
            {"kv_budget": {"method": "h20", "tokens": 32}},
            "kv_budget.method",
            "invalid_value",
            "invalid enum value",
        ),
        (
            {"kv_budget": {"method": "h2o", "tokens": "a"}},
            "kv_budget.tokens",
            "invalid_value",
            "expected `int",
        ),
        (
            {"kv_budget": {"method": "h2o"}},
            "kv_budget.tokens",
            "invalid_kv_budget",
            "neither is given",
        ),
        (
            {"kv_budget": {"method": "h2o", "token": 32}},
            "kv_budget.token",
            "unknown_parameter",
            "did you mean 'tokens'",
        ),
        ({"messages": []}, "messages", "unknown_parameter", "unknown field"),
    ],
)
async def test_a_wrong_field_is_refused(
    fields: dict[str, Any], param: str, code: str | None, words: str
) -> None:
    """The error names the field, the value and what is allowed."""
    engine = FakeEngine()
    async with serve(engine) as served:
        status, answer = await served.post(PATH, {"prompt": "x", **fields})
    error = answer["error"]
    assert status == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["code"] == (code or "unsupported_parameter")
    assert words in error["message"]
    assert engine.requests == []


@pytest.mark.parametrize("name", sorted(BORNE))
async def test_a_field_without_meaning_is_borne(name: str) -> None:
    """Whatever it holds, the answer is the same."""
    async with serve(FakeEngine()) as served:
        status, _ = await served.post(PATH, {"prompt": "x", name: {"a": 1}})
    assert status == 200


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
async def test_a_field_that_is_not_supported_may_say_nothing(name: str) -> None:
    """Null and the values that mean nothing are borne, any other is refused."""
    async with serve(FakeEngine()) as served:
        for value in (None, *UNSUPPORTED[name]):
            status, answer = await served.post(PATH, {"prompt": "x", name: value})
            assert status == 200, answer
        status, answer = await served.post(PATH, {"prompt": "x", name: ["other"]})
    assert status == 400
    assert answer["error"]["code"] == "unsupported_parameter"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "it is empty"),
        (b"{", "truncated"),
        (b'{"prompt": "x"} y', "trailing characters"),
        (b'{"prompt": "\xff"}', "not valid JSON"),
        (b'{"temperature": NaN}', "invalid character"),
        (b'{"temperature": 1e999}', "not valid JSON"),
        (b'["x"]', "must be a JSON object, not list"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"prompt": ' + b"[" * 100_000, "nested too deep"),
    ],
)
@pytest.mark.parametrize("path", [PATH, "/v1/chat/completions", "/tokenize"])
async def test_a_body_that_is_no_json_object_is_refused(
    path: str, body: bytes, words: str
) -> None:
    """The error says what is wrong with it."""
    async with serve(FakeEngine()) as served:
        status, answer = await served.post(path, body)
    assert status == 400
    assert answer["error"]["code"] == "json_invalid"
    assert words in answer["error"]["message"]


async def test_a_body_that_is_too_large_is_refused() -> None:
    """The error names the limit."""
    async with serve(FakeEngine()) as served:
        status, answer = await served.post(
            PATH, data=BytesIO(b" " * (MAX_BODY_BYTES + 1))
        )
    assert status == 413
    assert answer["error"]["code"] == "body_too_large"
    assert str(MAX_BODY_BYTES) in answer["error"]["message"]


async def test_an_unknown_model_is_refused() -> None:
    """The error lists the names that are served."""
    async with serve(FakeEngine()) as served:
        for path, more in (
            (PATH, {"prompt": "x"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
            ("/tokenize", {"prompt": "x"}),
            ("/detokenize", {"tokens": [1]}),
        ):
            status, answer = await served.post(path, {"model": "gpt", **more})
            assert status == 404
            assert answer["error"]["code"] == "model_not_found"
            assert "known: tiny, other" in answer["error"]["message"]
            assert answer["error"]["param"] == "model"


async def test_unknown_paths_and_methods_are_refused_in_the_same_shape() -> None:
    """A 405 tells the method that is allowed."""
    async with serve(FakeEngine()) as served:
        status, answer = await served.get("/v1/nothing")
        assert (status, answer["error"]["code"]) == (404, "path_not_found")
        async with served.client.get(PATH) as response:
            assert response.status == 405
            assert response.headers["Allow"] == "POST"
            answer = await response.json()
            assert answer["error"]["code"] == "method_not_allowed"


async def test_a_dead_engine_takes_no_work() -> None:
    """Health and requests say why, with 503."""
    engine = FakeEngine()
    engine.failure = "step 7: out of tune"
    async with serve(engine) as served:
        for status, answer in (
            await served.get("/health"),
            await served.post(PATH, {"prompt": "x"}),
        ):
            assert status == 503
            assert answer["error"]["type"] == "service_unavailable"
            assert "out of tune" in answer["error"]["message"]


async def test_a_bug_is_a_500_and_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets no traceback, the log does, and neither gets the prompt."""
    engine = FakeEngine()

    def fail(request: object) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(engine, "submit", fail)
    async with serve(engine) as served:
        status, answer = await served.post(PATH, {"prompt": "my secret"})
    assert status == 500
    assert answer["error"]["code"] == "internal_error"
    assert "ZeroDivisionError" in caplog.text
    assert "secret" not in caplog.text


async def test_a_bug_in_a_stream_cuts_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client sees that the answer is not whole, and no second head in it."""
    describe = CompletionShape.piece

    def fail(self: CompletionShape, choice: Choice, delta: Delta) -> dict[str, object]:
        if choice.is_begun:
            raise ZeroDivisionError("by nothing")
        return describe(self, choice, delta)

    monkeypatch.setattr(CompletionShape, "piece", fail)
    async with (
        serve(FakeEngine()) as served,
        served.client.post(PATH, json={"prompt": "x", "stream": True}) as response,
    ):
        assert response.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_prompts_are_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Neither answered nor refused requests leave their text in the log."""
    caplog.set_level(logging.DEBUG)
    async with serve(FakeEngine()) as served:
        await served.post(PATH, {"prompt": "my secret"})
        await served.post(PATH, {"prompt": "my secret", "n": -1})
        await served.post(PATH, b'{"prompt": "my secret"')
    assert "secret" not in caplog.text
