"""What the watches read from the answers of every engine's API."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.fake_http import CUTS, cut

from warmroute.proxy.http.watch import AnswerWatch, StreamWatch, Usage


def sse(*events: Any, end: str = "\n", extra: str = "") -> bytes:
    """Render events; a str is sent as it is, anything else as JSON."""
    lines = [one if isinstance(one, str) else json.dumps(one) for one in events]
    return "".join(f"{extra}data: {line}{end}{end}" for line in lines).encode()


def delta(**fields: Any) -> dict[str, Any]:
    return {"id": "c1", "choices": [{"index": 0, "delta": fields}]}


def counts(prompt: int, cached: int, output: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


USAGE = {"id": "c1", "choices": [], "usage": counts(30, 16, 2)}
ROLE = delta(role="assistant", content="")
MESSAGE_START = {
    "type": "message_start",
    "message": {
        "id": "m1",
        "usage": {
            "input_tokens": 10,
            "cache_read_input_tokens": 16,
            "cache_creation_input_tokens": 4,
            "output_tokens": 1,
        },
    },
}
INPUT = {
    "input_tokens": 30,
    "output_tokens": 2,
    "input_tokens_details": {"cached_tokens": 16},
}

# name: events before the first token, the first token, the rest, what is reported
STREAMS: dict[str, tuple[list[Any], Any, list[Any], Usage]] = {
    "chat": (
        [ROLE],
        delta(content="a"),
        [delta(content="b"), USAGE, "[DONE]"],
        Usage(30, 16, 2, "c1"),
    ),
    "chat that reasons in reasoning_content": (
        [ROLE],
        delta(reasoning_content="hm"),
        [delta(content="b"), USAGE, "[DONE]"],
        Usage(30, 16, 2, "c1"),
    ),
    "chat that reasons in reasoning": (
        [ROLE, delta(reasoning=None)],
        delta(reasoning="hm"),
        [USAGE],
        Usage(30, 16, 2, "c1"),
    ),
    "chat that calls a tool": (
        [ROLE, delta(tool_calls=[])],
        delta(tool_calls=[{"index": 0, "function": {"name": "f"}}]),
        [USAGE, "[DONE]"],
        Usage(30, 16, 2, "c1"),
    ),
    "chat without usage": ([ROLE], delta(content="a"), [], Usage()),
    "completions": (
        [{"id": "t", "choices": [{"text": ""}]}],
        {"id": "t", "choices": [{"text": "a"}]},
        [{"id": "t", "choices": [], "usage": counts(5, 0, 1)}, "[DONE]"],
        Usage(5, 0, 1, "t"),
    ),
    "responses": (
        [
            {"type": "response.created", "response": {"id": "r1", "usage": None}},
            {"type": "response.output_item.added", "item": {"id": "i"}},
        ],
        {"type": "response.output_text.delta", "delta": "a"},
        [
            {"type": "response.output_text.done", "text": "a"},
            {"type": "response.completed", "response": {"id": "r1", "usage": INPUT}},
        ],
        Usage(30, 16, 2, "r1"),
    ),
    "responses with a long answer": (
        [{"type": "response.created", "response": {"id": "r1"}}],
        {"type": "response.output_text.delta", "delta": "a"},
        [
            {
                "type": "response.completed",
                "response": {"id": "r1", "output": "word " * 500, "usage": INPUT},
            }
        ],
        Usage(30, 16, 2, "r1"),
    ),
    "messages": (
        [
            MESSAGE_START,
            {"type": "content_block_start", "content_block": {"type": "text"}},
            {"type": "ping"},
        ],
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}},
        [
            {"type": "content_block_stop"},
            {"type": "message_delta", "usage": {"output_tokens": 7}},
            {"type": "message_stop"},
        ],
        Usage(30, 16, 7),
    ),
    "generate": (
        [{"text": "", "meta_info": {"prompt_tokens": 8}}],
        {"text": "a", "meta_info": {"prompt_tokens": 8, "completion_tokens": 1}},
        [
            {
                "text": "ab",
                "meta_info": {
                    "id": "g",
                    "prompt_tokens": 8,
                    "completion_tokens": 2,
                    "cached_tokens": 4,
                },
            },
            "[DONE]",
        ],
        Usage(8, 4, 2),
    ),
    "generate of token ids": (
        [{"output_ids": []}],
        {"output_ids": [7], "meta_info": {"prompt_tokens": 8}},
        ["[DONE]"],
        Usage(8),
    ),
}


@pytest.mark.parametrize("name", STREAMS)
@settings(max_examples=25, deadline=None)
@given(
    CUTS,
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", "event: x\n", ": ping\n\n", "id: 7\nretry: 5\n"]),
)
def test_any_split_shows_the_same_token_and_usage(
    name: str, at: Sequence[int], end: str, extra: str
) -> None:
    """The first token comes with the byte that completes its event; usage stays."""
    before, first, rest, usage = STREAMS[name]
    extra = extra.replace("\n", end)
    until = len(sse(*before, first, end=end, extra=extra))
    watch = StreamWatch()
    seen, token_at = 0, None
    for piece in cut(sse(*before, first, *rest, end=end, extra=extra), at):
        seen += len(piece)
        if watch.feed(piece) and token_at is None:
            token_at = (seen - len(piece), seen)
    assert token_at is not None
    assert token_at[0] < until <= token_at[1]
    told = watch.usage()
    assert (told.prompt_tokens, told.cached_tokens, told.output_tokens) == (
        *(usage.prompt_tokens, usage.cached_tokens, usage.output_tokens),
    )
    if usage.answer_id is not None:
        assert told.answer_id == usage.answer_id


def test_long_last_event_in_network_segments_is_read() -> None:
    """An event far larger than a segment, as response.completed is, counts whole."""
    last = {"type": "response.completed", "response": {"id": "r", "usage": INPUT}}
    last["response"]["output"] = "word " * 20_000  # type: ignore[index]
    stream = sse({"type": "response.output_text.delta", "delta": "a"}, last)
    watch = StreamWatch()
    for piece in cut(stream, range(0, len(stream), 1448)):
        watch.feed(piece)
    assert watch.usage() == Usage(30, 16, 2, "r")


def test_stream_without_a_token_never_shows_one() -> None:
    """Roles, pings, comments and the end are no tokens."""
    watch = StreamWatch()
    stream = sse(ROLE, {"type": "ping"}, USAGE, "[DONE]") + b": a comment\n\n"
    assert not watch.feed(stream)
    assert watch.usage().prompt_tokens == 30


def test_each_piece_after_the_first_token_counts() -> None:
    """So that gaps between tokens can be told."""
    watch = StreamWatch()
    pieces = [sse(ROLE), sse(delta(content="a")), sse(delta(content="b")), b": x\n\n"]
    assert [watch.feed(piece) for piece in pieces] == [False, True, True, True]


def test_huge_event_is_not_kept() -> None:
    """A stream without events counts as begun once it is past any event's size."""
    watch = StreamWatch()
    pieces = [b"x" * 65536] * 20
    fed = [watch.feed(piece) for piece in pieces]
    assert fed[0] is False
    assert fed[-1] is True
    assert watch.usage() == Usage()


ANSWERS: dict[str, tuple[Any, Usage]] = {
    "chat": (
        {"id": "c", "choices": [], "usage": counts(9, 4, 2)},
        Usage(9, 4, 2, "c"),
    ),
    "no details": (
        {"usage": {"prompt_tokens": 9, "prompt_tokens_details": None}},
        Usage(9),
    ),
    "embeddings": ({"data": [], "usage": {"prompt_tokens": 9}}, Usage(9)),
    "responses": ({"id": "r", "usage": INPUT}, Usage(30, 16, 2, "r")),
    "messages": (
        {"id": "m", "usage": MESSAGE_START["message"]["usage"]},  # type: ignore[index]
        Usage(30, 16, 1, "m"),
    ),
    "generate": (
        {"text": "a", "meta_info": {"prompt_tokens": 8, "cached_tokens": 4}},
        Usage(8, 4),
    ),
    "generate of a batch": (
        [
            {"meta_info": {"prompt_tokens": 8, "cached_tokens": 4}},
            {"meta_info": {"prompt_tokens": 5, "completion_tokens": 3}},
        ],
        Usage(13, 4, 3),
    ),
    "numeric id": ({"id": 5, "usage": {"prompt_tokens": 1}}, Usage(1)),
    "error": ({"error": {"message": "no"}}, Usage()),
    "usage of a wrong type": ({"usage": "none"}, Usage()),
    "text": ("hello", Usage()),
}


@pytest.mark.parametrize("name", ANSWERS)
@settings(max_examples=15, deadline=None)
@given(CUTS)
def test_answer_is_read_at_its_end(name: str, at: Sequence[int]) -> None:
    """However it is cut, it reports the same, and is never a token by itself."""
    document, usage = ANSWERS[name]
    watch = AnswerWatch()
    assert not any(watch.feed(one) for one in cut(json.dumps(document).encode(), at))
    assert watch.usage() == usage


def test_answer_over_the_bound_reports_nothing() -> None:
    """Its bytes are let go; what passes is not kept in memory."""
    watch = AnswerWatch()
    watch.feed(b" " * (1 << 21) + b'{"usage":{"prompt_tokens":1}}')
    assert watch.usage() == Usage()


LARGEST = 2**31


@pytest.mark.parametrize("bad", [-1, LARGEST + 1, 10**30])
@pytest.mark.parametrize("field", ["prompt", "cached", "output"])
def test_count_that_cannot_be_one_is_not_reported(field: str, bad: int) -> None:
    """The other counts of the same report stand, in answers and in streams."""
    told = {"prompt": 30, "cached": 16, "output": 2}
    document = {"usage": counts(**(told | {field: bad}))}
    kept: dict[str, int | None] = {**told, field: None}
    usage = Usage(kept["prompt"], kept["cached"], kept["output"])
    watches: list[AnswerWatch | StreamWatch] = [AnswerWatch(), StreamWatch()]
    for watch in watches:
        is_stream = isinstance(watch, StreamWatch)
        watch.feed(sse(document) if is_stream else json.dumps(document).encode())
        assert watch.usage() == usage


@pytest.mark.parametrize("bad", [-1, LARGEST + 1])
@pytest.mark.parametrize(
    "field",
    ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"],
)
def test_bad_part_makes_the_sum_of_a_message_unreported(field: str, bad: int) -> None:
    """A prompt that is counted in parts is not guessed from some of them."""
    parts = {**MESSAGE_START["message"]["usage"], field: bad}  # type: ignore[index]
    watch = AnswerWatch()
    watch.feed(json.dumps({"usage": parts}).encode())
    cached = None if field == "cache_read_input_tokens" else 16
    assert watch.usage() == Usage(None, cached, 1)


def test_bad_count_does_not_undo_a_good_one() -> None:
    """What the first events of a stream reported stays."""
    watch = StreamWatch()
    watch.feed(sse({"usage": counts(30, 16, 1)}, delta(content="a")))
    watch.feed(sse({"usage": counts(-1, LARGEST + 1, 2)}))
    assert watch.usage() == Usage(30, 16, 2, "c1")


def test_largest_count_is_reported_but_no_larger_sum() -> None:
    """The bound holds for a batch as for one answer."""
    one = {"meta_info": {"prompt_tokens": LARGEST, "completion_tokens": 0}}
    single, batch = AnswerWatch(), AnswerWatch()
    single.feed(json.dumps(one).encode())
    batch.feed(json.dumps([one, one]).encode())
    assert single.usage() == Usage(LARGEST, None, 0)
    assert batch.usage() == Usage(None, None, 0)


DEEP = [b"[" * 100_000, b'{"id":' * 100_000, b'{"usage":{"x":' + b"[" * 100_000]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("choices", "usage", "delta", "message", "meta_info", "type"),
                    *("text", "prompt_tokens", "response", "id", "tool_calls"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
GARBAGE = st.one_of(
    st.binary(max_size=60),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.sampled_from(DEEP),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(GARBAGE, max_size=4))
def test_garbage_never_raises(documents: list[bytes]) -> None:
    """Whatever comes, the answer goes on."""
    watches: list[AnswerWatch | StreamWatch] = [AnswerWatch(), StreamWatch()]
    for watch in watches:
        for document in documents:
            watch.feed(b"data: " * isinstance(watch, StreamWatch) + document)
            watch.feed(b"\n\n")
        assert isinstance(watch.usage(), Usage)
