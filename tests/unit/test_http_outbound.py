"""An answer is relayed byte for byte up to its announced end, and no further."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from unit.fake_http import CUTS, FakeReceiver, cut, receive, single, upstream

from warmroute.proxy.http import outbound
from warmroute.proxy.http.answer import Answer
from warmroute.proxy.http.outbound import MAX_HEAD_BYTES, UpstreamConnection

OK = b"HTTP/1.1 200 OK\r\n"
INTERIM = st.lists(
    st.sampled_from(
        [
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n",
            b"HTTP/1.1 102 Processing\r\n\r\n",
        ]
    ),
    max_size=2,
).map(b"".join)
PAYLOAD = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"", b"\r\n", b"\r\n\r\n", b"0\r\n\r\n", OK + b"\r\n"]),
)
TRAILERS = st.sampled_from([b"", b"x-a: b\r\n", b"x-a:\r\nx-b: c\r\n"])


def sized(payload: bytes) -> tuple[bytes, bytes]:
    """Frame by length: head without blank line, rest."""
    return OK + b"Content-Length: %d\r\n" % len(payload), payload


def chunked(payloads: list[bytes], trailer: bytes) -> tuple[bytes, bytes]:
    """Frame in chunks, with an extension, ending in *trailer*."""
    framed = b"".join(b"%X;a=b\r\n%b\r\n" % (len(p), p) for p in payloads if p)
    return OK + b"Transfer-Encoding: chunked\r\n", framed + b"0\r\n%b\r\n" % trailer


ANSWERS = st.one_of(
    PAYLOAD.map(sized), st.builds(chunked, st.lists(PAYLOAD, max_size=4), TRAILERS)
)


@settings(max_examples=300, deadline=None)
@given(INTERIM, ANSWERS, CUTS)
def test_any_split_relays_the_same_bytes(
    interim: bytes, answer: tuple[bytes, bytes], at: Sequence[int]
) -> None:
    """Head and framed body arrive as sent; interim answers stay here."""
    head, rest = answer
    receiver, connection = receive(cut(interim + head + b"\r\n" + rest, at))
    assert receiver.answer is not None
    assert receiver.answer.status == 200
    assert receiver.answer.raw == head
    assert receiver.relayed == rest
    assert receiver.ends == ["ended"]
    assert not connection.is_closed


@settings(max_examples=200, deadline=None)
@given(st.lists(PAYLOAD, max_size=4), CUTS)
def test_any_split_shows_the_same_body(
    payloads: list[bytes], at: Sequence[int]
) -> None:
    """The sink sees the payload without framing, in order."""
    head, rest = chunked(payloads, b"")
    receiver, _ = receive(cut(head + b"\r\n" + rest, at))
    assert receiver.body_bytes == b"".join(payloads)


@settings(max_examples=100, deadline=None)
@given(PAYLOAD, CUTS)
def test_body_until_close_ends_with_the_connection(
    payload: bytes, at: Sequence[int]
) -> None:
    """Without a length the close is the end, and the connection is gone."""
    stream = OK + b"X: y\r\n\r\n" + payload
    receiver, connection = receive(cut(stream, at), eof=True)
    assert receiver.answer is not None
    assert receiver.answer.body_until_close
    assert receiver.relayed == payload
    assert receiver.ends == ["ended"]
    assert connection.is_closed


EXCESS = st.sampled_from([b"x", b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"0\r\n\r\n"])


@settings(max_examples=300, deadline=None)
@given(ANSWERS, st.one_of(EXCESS, st.just(OK + b"content-length: 0\r\n\r\n")), CUTS)
@example(sized(b"ab"), b"\r\n", [])
@example(chunked([b"ab"], b""), b"\r\n", [])
@example(chunked([b"ab"], b""), b"\n", range(50))
def test_nothing_beyond_the_announced_end_is_handed_on(
    answer: tuple[bytes, bytes], excess: bytes, at: Sequence[int]
) -> None:
    """What comes behind an answer is dropped, with the connection."""
    head, rest = answer
    receiver, connection = receive(cut(head + b"\r\n" + rest + excess, at))
    assert rest.startswith(receiver.relayed)
    assert len(receiver.ends) == 1
    assert receiver.ends == ["lost: more bytes than announced"] or (
        receiver.ends[0].startswith("lost: ") or receiver.relayed == rest
    )
    assert connection.is_closed


@settings(max_examples=200, deadline=None)
@given(ANSWERS, st.integers(0, 300), CUTS)
def test_cut_answer_is_lost_not_ended(
    answer: tuple[bytes, bytes], end: int, at: Sequence[int]
) -> None:
    """An engine that closes early never looks like one that was done."""
    head, rest = answer
    stream = head + b"\r\n" + rest
    short = stream[: end % len(stream)]
    receiver, _ = receive(cut(short, at), eof=True)
    assert receiver.ends == ["lost: closed"]
    assert rest.startswith(receiver.relayed)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), CUTS)
def test_garbage_never_raises(stream: bytes, at: Sequence[int]) -> None:
    """Bytes that are no HTTP lose the answer, once, and nothing is relayed."""
    receiver, _ = receive(cut(stream, at), eof=True)
    assert len(receiver.ends) == 1
    assert receiver.answer is None


@pytest.mark.parametrize(
    "stream",
    [
        OK + b"content-length: 1\r\ncontent-length: 2\r\n\r\nab",
        OK + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"content-length: -1\r\n\r\n",
        OK + b"x: y\r\n z\r\ncontent-length: 0\r\n\r\n",
        OK + b"x : y\r\n\r\n",
        OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 101 Switch\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/2.0 200 OK\r\ncontent-length: 0\r\n\r\n",
        OK + b"x: " + b"y" * (MAX_HEAD_BYTES + 1),
    ],
)
@pytest.mark.parametrize("by_bytes", [False, True])
def test_ambiguous_answer_is_lost(stream: bytes, by_bytes: bool) -> None:
    """What two parsers could read differently reaches no client as complete."""
    if by_bytes and len(stream) > 1000:
        by_bytes = False
    receiver, connection = receive(single(stream) if by_bytes else [stream])
    assert len(receiver.ends) == 1
    assert receiver.ends[0].startswith("lost: ")
    assert receiver.relayed == b""
    assert connection.is_closed


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("line", [b"", b"Transfer-Encoding: chunked\r\n"])
def test_status_without_a_body_ends_with_its_head(status: int, line: bytes) -> None:
    """204 and 304 have no body, whatever their heads say."""
    receiver, connection = receive([b"HTTP/1.1 %d X\r\n%b\r\n" % (status, line)])
    assert receiver.ends == ["ended"]
    assert receiver.relayed == b""
    assert not connection.is_closed


def test_answer_to_head_ends_with_its_head() -> None:
    """HEAD announces a body that does not come; the connection is not kept."""
    receiver, connection = receive([b"".join(sized(b"")) + b"\r\n"], bodiless=True)
    assert receiver.ends == ["ended"]
    receiver, connection = receive([OK + b"content-length: 9\r\n\r\n"], bodiless=True)
    assert receiver.ends == ["ended"]
    assert connection.is_closed
    receiver, _ = receive([OK + b"content-length: 2\r\n\r\nab"], bodiless=True)
    assert receiver.relayed == b""


def test_bytes_while_idle_close_the_connection() -> None:
    """What nobody asked for is read by nobody."""
    connection, transport = upstream()
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    assert transport.aborted


def test_kept_connection_serves_one_answer_after_the_other() -> None:
    """Requests take turns, and each receiver gets its own answer only."""
    connection, transport = upstream()
    for payload in (b"one", b"", b"three"):
        receiver = FakeReceiver()
        connection.send(receiver, b"GET / HTTP/1.1\r\n\r\n", b"")
        assert not connection.has_answered
        head, rest = sized(payload)
        connection.data_received(head + b"\r\n" + rest)
        assert receiver.relayed == payload
        assert connection.has_answered
    assert not transport.closing


HEADERS = st.sampled_from(
    [
        *(b"", b"X: 3\r\n", b"X: y\r\n", b"x: y\r\n", b"X: Content-Length: 3\r\n"),
        *(b"Connection: close\r\n", b"Connection: x\r\n", b"Content-Length: 3\r\n"),
        *(b"Transfer-Encoding: chunked\r\n", b"Connection: keep-alive\r\n"),
        *(b"X: y\r\r\n", b"X: y\n", b"X: y\r\n z\r\n", b"X : y\r\n", b"\r\n"),
    ]
)
NEAR = st.builds(
    lambda start, before, name, length, behind, body, excess: (
        b"%b%b%b: %b\r\n%b\r\n%b%b"
        % (start, before, name, length or b"%d" % len(body), behind, body, excess)
    ),
    st.sampled_from(
        [OK] * 5
        + [b"HTTP/1.1 204 No Content\r\n", b"HTTP/1.1 304 Not Modified\r\n"]
        + [b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n"]
        + [b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK, b"http/1.1 200 OK\r\n"]
    ),
    HEADERS,
    st.sampled_from([b"Content-Length"] * 4 + [b"content-length", b"X"]),
    st.sampled_from(
        [b""] * 6 + [b"0", b"3", b"03", b"003", b"4", b"2", b"+3", b"3 ", b"3\t"]
    ),
    HEADERS,
    PAYLOAD,
    st.sampled_from([b""] * 4 + [b"\r\n", b"x", OK + b"Content-Length: 0\r\n\r\n"]),
)


def seen(receiver: FakeReceiver, connection: UpstreamConnection) -> tuple[object, ...]:
    """Tell all that an answer has brought."""
    answer = receiver.answer
    facts = answer and (
        *(answer.status, answer.raw, answer.content_type),
        *(answer.chunked, answer.body_until_close),
    )
    ends = (receiver.relayed, receiver.body_bytes, receiver.ends)
    fits = answer is not None and answer.chunked and connection.at_chunk_boundary
    return facts, *ends, connection.is_closed, fits


@settings(max_examples=600, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(
                st.just(b"\r\n".join(sized(b"abc"))),
                NEAR,
                ANSWERS.map(b"\r\n".join),
            ),
            st.one_of(st.just([]), st.just([]), CUTS),
            st.sampled_from([False] * 4 + [True]),
        ),
        min_size=2,
        max_size=6,
    )
)
def test_recognised_and_parsed_answers_are_the_same(
    answers: list[tuple[bytes, Sequence[int], bool]],
) -> None:
    """A connection with a past takes each answer as a new connection does."""
    connection, transport = upstream()
    for stream, at, bodiless in answers:
        receiver = FakeReceiver()
        connection.send(receiver, b"GET / HTTP/1.1\r\n\r\n", b"", bodiless=bodiless)
        for segment in cut(stream, at):
            if not transport.closing:
                connection.data_received(segment)
        assert seen(receiver, connection) == seen(
            *receive(cut(stream, at), bodiless=bodiless)
        )
        if transport.closing or receiver.ends != ["ended"]:
            return


@pytest.mark.pure
def test_repeated_head_of_an_engine_is_parsed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another body, also of another length, needs no second parse."""
    parsed = []

    class CountingAnswer(Answer):
        __slots__ = ()

        def __init__(self, status: int, raw: bytes, like: Answer | None = None) -> None:
            if like is None:
                parsed.append(raw)
            super().__init__(status, raw, like)

    monkeypatch.setattr(outbound, "Answer", CountingAnswer)
    connection, _ = upstream()
    for payload in (b"one", b"two", b"", b"x" * 100):
        receiver = FakeReceiver()
        connection.send(receiver, b"GET / HTTP/1.1\r\n\r\n", b"")
        connection.data_received(b"\r\n".join(sized(payload)))
        assert receiver.body_bytes == payload
        assert receiver.answer is not None
        assert receiver.answer.raw == sized(payload)[0]
    assert parsed == [sized(b"one")[0]]


@pytest.mark.parametrize(
    "head", [OK + b"Connection: close\r\n", b"HTTP/1.0 200 OK\r\n"]
)
def test_connection_that_the_engine_will_close_is_not_kept(head: bytes) -> None:
    """Its word that it closes is enough."""
    receiver, connection = receive([head + b"content-length: 1\r\n\r\nx"])
    assert receiver.ends == ["ended"]
    assert connection.is_closed


def test_large_body_is_sent_whole() -> None:
    """Head and body leave in order, small and large alike."""
    for size in (10, 20_000):
        connection, transport = upstream()
        connection.send(FakeReceiver(), b"HEAD", b"x" * size)
        assert transport.written == b"HEAD" + b"x" * size


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 66), CUTS)
def test_own_chunk_fits_only_between_chunks(end: int, at: Sequence[int]) -> None:
    """A chunk of ours may follow what was relayed only where no chunk has begun."""
    head, rest = chunked([b"ab", b"0\r\n", b"\r\n\r\n", b"c" * 20], b"")
    fits = {0, 11, 23, 36, 66}
    assert [rest[:place][-2:] for place in sorted(fits)[1:]] == [b"\r\n"] * 4
    end = min(end, len(rest) - len(b"0\r\n\r\n"))
    start = head + b"\r\n"
    cuts = [len(start) + place for place in at if place <= end]
    receiver, connection = receive(cut(start + rest[:end], cuts))
    assert receiver.ends == []
    assert connection.at_chunk_boundary is (end in fits)


def test_hop_by_hop_headers_stay_here() -> None:
    """So do those that Connection names, but never what frames the body."""
    answer = Answer(
        200,
        OK + b"Connection: X-Own , keep-alive, Content-Length\r\nKeep-Alive: 5\r\n"
        b"x-own: 1\r\nX-Other: 2\r\nTrailer: a\r\nUpgrade: h2c\r\n"
        b"Proxy-Connection: close\r\nContent-Length: 3\r\nSet-Cookie: a\r\n"
        b"set-cookie: b\r\n",
    )
    assert answer.raw == (
        OK + b"X-Other: 2\r\nContent-Length: 3\r\nSet-Cookie: a\r\nset-cookie: b\r\n"
    )
    assert not answer.chunked
    assert not answer.body_until_close


def test_answer_knows_its_framing_and_type() -> None:
    """Names are compared in any case."""
    answer = Answer(
        200, OK + b"TRANSFER-Encoding: chunked\r\nCONTENT-Type:  Text/Event-Stream\r\n"
    )
    assert answer.chunked
    assert answer.content_type == b"text/event-stream"
    assert Answer(200, OK).body_until_close
    assert Answer(200, OK).content_type == b""


PLAIN_CHUNKS = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=40),
        st.sampled_from([b"\r\n", b"0\r\n\r\n", b"1\r\na\r\n", OK + b"\r\n"]),
    ),
    min_size=1,
    max_size=8,
)
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@settings(max_examples=300, deadline=None)
@given(PLAIN_CHUNKS, CUTS, st.booleans())
def test_chunks_that_skip_the_parser_read_as_those_that_do_not(
    payloads: list[bytes], at: Sequence[int], is_split: bool
) -> None:
    """A segment a chunk, some of them cut: bytes, body and end are the same."""
    chunks = [b"%x\r\n%b\r\n" % (len(one), one) for one in payloads]
    segments = [CHUNKED, *chunks, b"0\r\n\r\n"]
    if is_split:
        whole = len(chunks) // 2 + 1
        rest = b"".join(segments[whole:])
        segments = [*segments[:whole], *cut(rest, at)]
    receiver, connection = receive(segments)
    assert receiver.relayed == b"".join(chunks) + b"0\r\n\r\n"
    assert receiver.body_bytes == b"".join(payloads)
    assert receiver.ends == ["ended"]
    assert not connection.is_closed


@pytest.mark.parametrize("excess", [b"1\r\na\r\n", b"0\r\n\r\n", b"\r\n", b"x"])
def test_chunk_behind_the_end_is_never_relayed(excess: bytes) -> None:
    """The shape of a chunk opens no way past the end of an answer."""
    segments = [CHUNKED, b"1\r\na\r\n", b"1\r\nb\r\n", b"0\r\n\r\n", excess]
    receiver, connection = receive(segments)
    assert receiver.relayed == b"".join(segments[1:-1])
    assert connection.is_closed


@pytest.mark.parametrize("begun", [b"1", b"1;a", b"1\r\n", b"1\r\na", b"1\r\na\r"])
def test_chunk_within_a_chunk_is_left_to_the_parser(begun: bytes) -> None:
    """What comes in the middle of one is no chunk, whatever it looks like."""
    segments = [CHUNKED, b"1\r\na\r\n", begun, b"2\r\nbc\r\n"]
    parsed, _ = receive([segments[0], b"".join(segments[1:])])
    receiver, _ = receive(segments)
    assert receiver.ends == parsed.ends
    if not receiver.ends:
        assert receiver.body_bytes == parsed.body_bytes


def test_body_until_the_close_is_not_taken_for_chunks() -> None:
    """A coding other than chunked frames nothing."""
    head = OK + b"Transfer-Encoding: gzip\r\n\r\n"
    receiver, _ = receive([head, b"1\r\na\r\n", b"1\r\nb\r\n"], eof=True)
    assert receiver.body_bytes == receiver.relayed == b"1\r\na\r\n1\r\nb\r\n"
