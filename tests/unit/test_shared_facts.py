"""What many spans have in common is written once, and told of each as its own."""

from typing import Any

import pytest
from unit.trace_rig import FakeHead, fake_tracer, play

from warmroute.proxy.telemetry import shared_facts
from warmroute.proxy.telemetry.span import Span


def spans_of(head: FakeHead | None = None, **facts: Any) -> list[Span]:
    tracer, sink = fake_tracer()
    play(tracer, head, **facts)
    return list(sink.traces[0])


def test_spans_of_like_requests_share_what_is_written() -> None:
    """The second request writes none of it anew."""
    for one, other in zip(spans_of(), spans_of(), strict=True):
        assert one.shared
        for mine, theirs in zip(one.shared, other.shared, strict=True):
            assert mine is theirs


def test_an_unlike_request_shares_only_what_is_true_of_it() -> None:
    """What was remembered of others is not told of this one."""
    spans_of()
    server, _, client = spans_of(FakeHead("/v1/models", b"BREW"), status=503)
    assert server.attributes["http.request.method"] == "_OTHER"
    assert server.attributes["http.request.method_original"] == "BREW"
    assert server.attributes["http.route"] == "/v1/models"
    assert server.attributes["http.response.status_code"] == 503
    assert client.attributes["http.response.status_code"] == 503
    assert "http.request.method_original" not in spans_of()[0].attributes


@pytest.mark.parametrize(
    "facts",
    [{}, {"status": 503}, {"error": "upstream_lost"}, {"num_lost": 2}],
    ids=["good", "refused", "broken", "retried"],
)
def test_nothing_is_told_twice(facts: dict[str, Any]) -> None:
    """OTLP forbids a key that comes back in one span."""
    for span in spans_of(FakeHead(user_agent="curl"), **facts):
        told = [key for shared in span.shared for key in shared.attributes]
        assert sorted({*told, *span.own}) == sorted([*told, *span.own])


def test_what_is_remembered_is_bounded() -> None:
    """A client that makes up paths fills no memory."""
    for number in range(1000):
        spans_of(FakeHead(f"/made/up/{number}"))
    remembered = shared_facts.facts_of_request.cache_info()
    assert remembered.maxsize is not None
    assert remembered.currsize <= remembered.maxsize
