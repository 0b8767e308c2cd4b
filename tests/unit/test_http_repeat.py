"""A connection that recognises repeated heads reads what one that parses all reads."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from unit.fake_http import CUTS, FakeClient, FakeLimits, FakePort, cut, single

LIMITS = FakeLimits(body_bytes=120)


def request(
    body: bytes = b"abc",
    extra: bytes = b"",
    *,
    length: bytes | None = None,
    name: bytes = b"Content-Length",
    target: bytes = b"/v1/x",
    behind: bytes = b"",
) -> bytes:
    """Render a POST; *length* may lie, *behind* stands behind its header."""
    number = b"%d" % len(body) if length is None else length
    return b"POST %b HTTP/1.1\r\nHost: h\r\n%b%b: %b\r\n%b\r\n%b" % (
        target,
        extra,
        name,
        number,
        behind,
        body,
    )


def read(segments: list[bytes], mode: str = "at once") -> list[tuple[Any, ...]]:
    """Read *segments* on one connection; when answers end is the mode."""
    client = FakeClient(FakePort(LIMITS, answers_at_once=mode == "at once"))
    for segment in segments:
        client.send(segment)
        if mode == "between":
            client.answer_all()
    client.answer_all()
    return client.port.log


A = request()
INNER = request(b"", target=b"/secret")
BODIES = st.one_of(
    st.sampled_from([b"", b"abc", b"xyz", b"3", b"\r\n\r\n", b"\r\n\r\nabc", A, INNER]),
    st.sampled_from([b"a" * 99, b"a" * 100, b"a" * 120, b"a" * 121, b"a" * 300]),
    st.binary(max_size=12),
)
EXTRAS = st.sampled_from(
    [
        *(b"", b"X: 3\r\n", b"X: y\r\n", b"X-Content-Length: 3\r\n", b"x: y\r\n"),
        *(b"X: Content-Length: 3\r\n", b"Connection: x\r\n", b"Connection: close\r\n"),
        *(b"Expect: 100-continue\r\n", b"Transfer-Encoding: chunked\r\n"),
        *(b"Connection: upgrade\r\nUpgrade: h2c\r\n", b"Content-Length: 3\r\n"),
        *(b"X: y\r\r\n", b"X: y\n", b"X: y\r\n z\r\n", b"X : y\r\n", b"\r\n"),
    ]
)
NEAR = st.builds(
    request,
    BODIES,
    EXTRAS,
    length=st.sampled_from(
        [None] * 6
        + [b"0", b"3", b"03", b"003", b"4", b"2", b"+3", b"3 ", b"3\t", b"99"]
    ),
    name=st.sampled_from(
        [b"Content-Length"] * 4 + [b"content-length", b"CONTENT-LENGTH", b"X"]
    ),
    target=st.sampled_from([b"/v1/x"] * 4 + [b"/v1/y", b"http://h/v1/x", b"bad"]),
    behind=EXTRAS,
)
CHUNKED = st.builds(
    lambda body, trailer: (
        b"POST /v1/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, trailer)
    ),
    BODIES.filter(bool),
    st.sampled_from([b"", b"Content-Length: 3\r\n", b"X: y\r\n"]),
)
ODD = st.sampled_from(
    [
        *(b"\r\n", b"\r", b"\n", b"\r\n\r\n", b"\r\n\r", b"P", b"abc", b"\x00", b"0"),
        *(A[:-1], A[:-3], A[:30], A + b"\r", request(A, length=b"%d" % (2 * len(A)))),
        *(b"GET /v1/x HTTP/1.1\r\nHost: h\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n"),
    ]
)
PARTS = st.lists(
    st.tuples(
        st.one_of(st.just(A), st.builds(request, BODIES), NEAR, CHUNKED, ODD),
        st.booleans(),
    ),
    min_size=1,
    max_size=7,
)
MODES = st.sampled_from(["at once", "between", "at the end"])


def glued(parts: list[tuple[bytes, bool]], at: list[int]) -> list[bytes]:
    """Join each part to the one before where it says so, then cut further."""
    segments: list[bytes] = []
    for part, joins in parts:
        if joins and segments:
            segments[-1] += part
        else:
            segments.append(part)
    return [piece for segment in segments for piece in cut(segment, at)]


@settings(max_examples=600, deadline=None)
@given(PARTS, st.one_of(st.just([]), st.lists(st.integers(1, 200), max_size=2)), MODES)
@example([(A, False), (A + A + request(A)[:-46], False), (A, False)], [], "at once")
@example([(A, False), (A + b"\r", False)], [], "at once")
def test_recognised_and_parsed_heads_are_the_same_requests(
    parts: list[tuple[bytes, bool]], at: list[int], mode: str
) -> None:
    """Byte by byte nothing is ever recognised, so that is what is right."""
    segments = glued(parts, at)
    assert read(segments, mode) == read(single(b"".join(segments)))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=110), min_size=1, max_size=6), CUTS, MODES)
def test_well_formed_requests_arrive_as_sent(
    bodies: list[bytes], at: Sequence[int], mode: str
) -> None:
    """Method, target and body of each, in order, however the bytes are cut."""
    stream = b"".join(request(body) for body in bodies)
    for segments in (cut(stream, at), [request(body) for body in bodies]):
        log = read(segments, mode)
        assert [(one[0], one[1], one[4]) for one in log] == [
            (b"POST", b"/v1/x", body) for body in bodies
        ]


def heads(*segments: bytes) -> int:
    """Count the heads that were parsed to read *segments*."""
    client = FakeClient(FakePort(LIMITS))
    client.send(*segments)
    return len({id(work.head) for work in client.port.works})


def test_repeated_head_is_parsed_once() -> None:
    """Another body, also of another length, needs no second parse."""
    assert heads(A, A, request(b""), request(b"x" * 100)) == 1


@pytest.mark.parametrize(
    "first",
    [
        request(length=b"003"),
        request(extra=b"Expect: 100-continue\r\n"),
        b"GET /v1/x HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc",
        A + b"\r\n",
    ],
)
def test_head_without_one_plain_reading_is_parsed_each_time(first: bytes) -> None:
    """What is not sure to mean the same again is not learned."""
    assert heads(first, first) == 2


@pytest.mark.parametrize("rest", range(1, len(A)))
def test_body_of_a_begun_request_is_no_request(rest: int) -> None:
    """A request behind others in a segment takes the bytes that its length claims.

    Its body, alone in the next segment, looks exactly like the known head.
    """
    begun = request(A, target=b"/outer")[: -len(A)]
    log = read([A, A + A + begun, A], "at once")
    assert [one[1] for one in log] == [b"/v1/x"] * 3 + [b"/outer"]
    assert log[-1][4] == A
    split = read([A, A + A + begun + A[:rest], A[rest:]])
    assert split == log


@pytest.mark.parametrize("tail", [b"\r", b"\n", b"\r\n", b"\r\n\r", b"\r\n\r\n"])
def test_line_ends_behind_a_body_are_not_learned(tail: bytes) -> None:
    """No head is accepted later that a parser would refuse."""
    bad = request(behind=b"X: y" + tail + b"\r\n")
    for first in (request(behind=b"X: y\r\n") + tail, request() + tail):
        assert read([first, bad]) == read(single(first + bad))


@pytest.mark.parametrize("given_id", [b"", b"X-Request-Id: two words\r\n"])
def test_each_repeat_has_an_id_of_its_own(given_id: bytes) -> None:
    """Without a usable id of the client's, no two requests share one."""
    client = FakeClient()
    client.send(*[request(extra=given_id)] * 5)
    assert len({work.request_id for work in client.port.works}) == 5


def test_client_id_stays_on_repeats() -> None:
    """An id that the client repeats is the client's will."""
    client = FakeClient()
    client.send(*[request(extra=b"X-Request-Id: abc\r\n")] * 2)
    assert [work.request_id for work in client.port.works] == [b"abc"] * 2


def test_body_over_the_limit_is_refused_on_a_known_head() -> None:
    """The limit holds for recognised heads too."""
    log = read([A, request(b"x" * 120), request(b"x" * 121), A])
    assert log[2:] == [(413, "body_too_large")]
    assert len(log[1][4]) == 120
