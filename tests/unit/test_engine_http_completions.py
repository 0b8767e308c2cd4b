"""Text completions of the embedded engine over HTTP."""

import json
from itertools import product
from typing import Any

import pytest
from unit.fake_generator import FakeEngine, events, serve

from warmroute.adapters.embedded.budget.options import BudgetOptions

PATH = "/v1/completions"


async def test_a_text_is_continued() -> None:
    """The answer has OpenAI's shape, and usage counts cached tokens."""
    engine = FakeEngine()
    engine.cached_tokens = 1
    async with serve(engine) as served:
        status, answer = await served.post(PATH, {"model": "tiny", "prompt": "hi"})
    assert status == 200
    assert answer.pop("id").startswith("cmpl-")
    assert answer.pop("created") > 0
    assert answer == {
        "object": "text_completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "text": "Hello",
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 2,
            "total_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("AB", [[65, 66]]),
        (["A", "B"], [[65], [66]]),
        ([7, 8], [[7, 8]]),
        ([[7], [8, 9]], [[7], [8, 9]]),
    ],
)
async def test_a_prompt_may_take_four_forms(prompt: Any, ids: list[list[int]]) -> None:
    """Texts are encoded, token ids are taken as they are."""
    engine = FakeEngine()
    async with serve(engine) as served:
        status, answer = await served.post(
            PATH, {"prompt": prompt, "n": 2, "return_token_ids": True}
        )
    assert status == 200
    assert ids == [request.prompt_ids for request in engine.requests]
    choices = answer["choices"]
    assert [*range(2 * len(ids))] == [choice["index"] for choice in choices]
    assert [one for one in ids for _ in range(2)] == [
        choice["prompt_token_ids"] for choice in choices
    ]
    assert all(choice["token_ids"] == [65, 66] for choice in choices)
    assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))
    assert answer["usage"]["completion_tokens"] == 4 * len(ids)


async def test_sampling_fields_reach_the_engine() -> None:
    """Every field that the engine knows is handed on."""
    engine = FakeEngine()
    fields = {
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.25,
        "seed": -7,
        "n": 3,
        "priority": -2,
        "cache_salt": "s",
        "ignore_eos": True,
        "min_tokens": 2,
        "logprobs": 4,
    }
    async with serve(engine) as served:
        status, _ = await served.post(PATH, {"prompt": "x", "stop": "\n", **fields})
    assert status == 200
    (request,) = engine.requests
    assert request.stop == ("\n",)
    assert fields == {name: getattr(request, name) for name in fields}


async def test_a_token_budget_reaches_the_engine() -> None:
    """Its fields are those of the budget options; null is the same as absent."""
    engine = FakeEngine()
    fields = {"method": "h2o", "tokens": 32, "sinks": 4, "recent": 8, "share": None}
    async with serve(engine) as served:
        status, answer = await served.post(PATH, {"prompt": "x", "kv_budget": fields})
    assert status == 200, answer
    assert engine.requests[0].budget == BudgetOptions(
        "h2o", tokens=32, sinks=4, recent=8
    )


async def test_defaults_are_those_of_the_api() -> None:
    """Sixteen tokens at temperature 1, and null is the same as absent."""
    engine = FakeEngine()
    async with serve(engine) as served:
        status, _ = await served.post(
            PATH, {"prompt": "x", "max_tokens": None, "stop": None, "seed": None}
        )
    assert status == 200
    (request,) = engine.requests
    assert (request.max_tokens, request.temperature, request.top_p) == (16, 1.0, 1.0)
    assert (request.stop, request.seed, request.n) == ((), None, 1)
    assert request.logprobs is None


async def test_a_stream_ends_with_done() -> None:
    """Each delta is one event, the last one before the mark has the reason."""
    async with serve(FakeEngine("a", "b", "c")) as served:
        *chunks, done = await served.stream(PATH, {"prompt": "x"})
    assert done == "[DONE]"
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert [choice["text"] for choice in choices] == ["a", "b", "c"]
    assert [choice["finish_reason"] for choice in choices] == [None, None, "stop"]
    assert not any("usage" in json.loads(chunk) for chunk in chunks)


async def test_a_stream_tells_usage_when_asked() -> None:
    """One more chunk, without choices, holds the usage of the whole answer."""
    body = {"prompt": "xyz", "stream_options": {"include_usage": True}}
    async with serve(FakeEngine()) as served:
        *_, usage, _ = await served.stream(PATH, body)
    last = json.loads(usage)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 5


async def test_a_stream_tells_usage_so_far_when_asked() -> None:
    """With vLLM's option every chunk has the usage."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with serve(FakeEngine()) as served:
        *chunks, _ = await served.stream(
            PATH, {"prompt": "x", "stream_options": options}
        )
    counts = [json.loads(one)["usage"]["completion_tokens"] for one in chunks]
    assert counts == [1, 2, 2]


async def test_a_stream_of_several_prompts_and_choices() -> None:
    """Each choice of each prompt is complete, under its own index."""
    body = {"prompt": ["x", "y"], "n": 2, "return_token_ids": True}
    async with serve(FakeEngine()) as served:
        *chunks, _ = await served.stream(PATH, body)
    texts: dict[int, str] = {}
    prompts: dict[int, list[list[int]]] = {}
    for chunk in chunks:
        (choice,) = json.loads(chunk)["choices"]
        at = choice["index"]
        texts[at] = texts.get(at, "") + choice["text"]
        if "prompt_token_ids" in choice:
            prompts.setdefault(at, []).append(choice["prompt_token_ids"])
    assert texts == dict.fromkeys(range(4), "Hello")
    assert prompts == {0: [[120]], 1: [[120]], 2: [[121]], 3: [[121]]}


async def test_text_that_lags_makes_no_empty_chunk() -> None:
    """A token whose text is held back is told with the next text."""
    async with serve(FakeEngine("", "ab", "")) as served:
        *chunks, _ = await served.stream(PATH, {"prompt": "x"})
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert [choice["text"] for choice in choices] == ["ab", ""]


async def test_log_probabilities_have_the_shape_of_the_api() -> None:
    """Tokens, their logprobs, the likeliest ones, and offsets into the text."""
    async with serve(FakeEngine()) as served:
        _, answer = await served.post(PATH, {"prompt": "x", "logprobs": 2})
        *chunks, _ = await served.stream(PATH, {"prompt": "x", "logprobs": 0})
    assert answer["choices"][0]["logprobs"] == {
        "tokens": ["A", "A"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"A": -0.5, "B": -1.5}] * 2,
        "text_offset": [0, 1],
    }
    pieces = [json.loads(chunk)["choices"][0]["logprobs"] for chunk in chunks]
    assert [piece["text_offset"] for piece in pieces] == [[0], [3]]
    assert all(piece["top_logprobs"] == [{}] for piece in pieces)


async def test_a_failure_before_the_first_token_is_a_plain_error() -> None:
    """Nothing was sent yet, so the status can still say it."""
    engine = FakeEngine()
    engine.breaks_after = 0
    async with serve(engine) as served:
        for prompt, stream in product(("x", ["x", "y"]), (False, True)):
            status, answer = await served.post(
                PATH, {"prompt": prompt, "stream": stream}
            )
            assert status == 500
            assert answer["error"]["code"] == "engine_failed"
            assert "out of tune" in answer["error"]["message"]


async def test_a_failure_in_a_stream_is_its_last_event() -> None:
    """The error comes as an event, and the mark of a whole answer does not."""
    engine = FakeEngine()
    engine.breaks_after = 1
    async with (
        serve(engine) as served,
        served.client.post(PATH, json={"prompt": "x", "stream": True}) as response,
    ):
        _, last = await events(response)
    assert json.loads(last)["error"]["code"] == "engine_failed"


async def test_one_refused_prompt_aborts_the_others() -> None:
    """A list of prompts is taken as a whole or not at all."""
    engine = FakeEngine()
    async with serve(engine) as served:
        status, _ = await served.post(PATH, {"prompt": [[1], [999]]})
    assert status == 400
    assert len(engine.requests) == 1
    assert len(engine.aborted) <= 1
