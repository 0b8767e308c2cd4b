"""Usage is asked for without touching another byte, and hidden again."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.fake_http import CUTS, cut

from warmroute.proxy.http.splice import MAX_EVENT_BYTES, UsageFilter, ask_for_usage

USAGE = b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":3}}'
OTHERS = [
    b'data: {"choices":[{"delta":{"content":"a"}}],"usage":null}',
    b'data: {"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":3}}',
    b'data: {"choices":[],"usage":null}',
    b'data: {"choices":[],"prompt_filter_results":[]}',
    b'data: {"choices":[{"delta":{"content":"\\"usage\\": data: []"}}]}',
    b'data: {"error":{"message":"usage"}}',
    b"data: [DONE]",
    b': a comment on "usage"',
    b"event: usage\nid: 4\ndata: {}",
    b'data: {"choices":[],"usage":',
    b'data: "usage"',
    b"\xff\xfe",
    b"data:",
]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from([*OTHERS, USAGE, b"event: x\n" + USAGE]),
        st.sampled_from([b"\n\n", b"\r\n\r\n"]),
    ),
    max_size=6,
)


@settings(max_examples=300, deadline=None)
@given(EVENTS, st.sampled_from([b"", b"data: {", USAGE[:-3], b"\r", b"\n"]), CUTS)
def test_output_is_the_input_without_the_usage_event(
    events: list[tuple[bytes, bytes]], rest: bytes, at: Sequence[int]
) -> None:
    """For any split; an event that stays open at the end is passed on too."""
    usage_filter = UsageFilter()
    stream = b"".join(event + end for event, end in events) + rest
    passed = b"".join(usage_filter.feed(piece) for piece in cut(stream, at))
    assert passed + usage_filter.rest() == (
        b"".join(event + end for event, end in events if USAGE not in event) + rest
    )


def test_whole_events_are_not_held_back() -> None:
    """Only what is incomplete waits."""
    usage_filter = UsageFilter()
    assert usage_filter.feed(b"data: 1\n\ndata: 2\n") == b"data: 1\n\n"
    assert usage_filter.feed(b"\n") == b"data: 2\n\n"
    assert usage_filter.rest() == b""


def test_stream_without_events_is_not_held_back_for_long() -> None:
    """What is too large for an event is passed on, so memory is bounded."""
    usage_filter = UsageFilter()
    pieces = [b"x" * 65536] * 9
    passed = b"".join(usage_filter.feed(piece) for piece in pieces)
    assert len(passed) >= len(b"".join(pieces)) - MAX_EVENT_BYTES
    assert passed + usage_filter.rest() == b"".join(pieces)


def test_deeply_nested_event_passes() -> None:
    """An event that no decoder reads is the client's business."""
    event = b'data: {"choices":[],"usage":' + b"[" * 100_000 + b"\n\n"
    assert UsageFilter().feed(event) == event


@pytest.mark.parametrize("lead", [b"", b" \r\n\t"])
def test_asking_changes_nothing_else(lead: bytes) -> None:
    """One member comes in front; every other byte stays as it was."""
    body = b'{"model" : "m", "messages":[ {"role":"user","content":"\xc3\xa4{"} ]}'
    asking = ask_for_usage(lead + body)
    assert asking.startswith(lead + b"{")
    assert asking.endswith(body[1:])
    document = json.loads(asking)
    assert document.pop("stream_options") == {"include_usage": True}
    assert document == json.loads(body)
