"""A client's connection: one answer at a time, limits, deadlines, ends."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.fake_http import FakeClient, FakeLimits, FakePort, FakeWork, single

GET = b"GET /v1/x HTTP/1.1\r\nHost: h\r\n\r\n"
POST = b"POST /v1/x HTTP/1.1\r\nHost: h\r\n"
UPGRADE = POST + b"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc"


def client(*, answers_at_once: bool = True, **limits: Any) -> FakeClient:
    """Open a connection to a port with these limits."""
    port = FakePort(FakeLimits(**limits), answers_at_once=answers_at_once)
    return FakeClient(port)


def log(*segments: bytes, **limits: Any) -> list[tuple[Any, ...]]:
    """Send *segments*, and return what the port saw."""
    one = client(**limits)
    one.send(*segments)
    return one.port.log


def test_pipelined_requests_wait_their_turn() -> None:
    """One is answered at a time, in order; nothing more is read meanwhile."""
    one = client(answers_at_once=False)
    one.send(GET + GET, GET, GET)
    assert len(one.port.works) == 1
    assert one.transport.paused
    for count in (2, 3, 4):
        one.answer()
        assert len(one.port.works) == count
    one.answer()
    assert not one.transport.paused
    assert repr(one.connection) == "<ClientConnection idle>"


@pytest.mark.parametrize("request_", [GET, UPGRADE])
def test_thousands_of_pipelined_requests_are_answered(request_: bytes) -> None:
    """However many fit into a segment; answers that are ready do not nest."""
    assert len(log(request_ * 2000)) == 2000


def test_upgrade_is_declined_and_the_rest_is_read() -> None:
    """What follows is the body, then the next request, whatever it is."""
    seen = log(UPGRADE + UPGRADE + GET + b"\x00garbage\r\n\r\n")
    assert [one[4] for one in seen[:3]] == [b"abc", b"abc", b""]
    assert seen[3:] == [(400, "bad_request")]


def test_declined_upgrade_keeps_what_else_connection_says() -> None:
    """Named headers stay hop-by-hop, close stays close."""
    one = client()
    one.send(UPGRADE.replace(b"upgrade\r\n", b"Upgrade, X-Own, close\r\n", 1))
    head = one.port.works[0].head
    assert head.fields[b"connection"] == b"X-Own, close"
    assert not head.keeps_alive


def test_declined_upgrade_keeps_its_version() -> None:
    """An HTTP/1.0 client must not get an answer of HTTP/1.1."""
    one = client()
    one.send(UPGRADE.replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert one.port.works[0].head.version == "1.0"


LIMITED = [
    (POST + b"Content-Length: 21\r\n\r\n", (413, "body_too_large")),
    (POST + b"Content-Length: 21\r\n\r\n" + b"x" * 21, (413, "body_too_large")),
    (
        POST + b"Transfer-Encoding: chunked\r\n\r\n15\r\n" + b"x" * 21,
        (413, "body_too_large"),
    ),
    (POST + b"X: %b\r\n\r\n" % (b"x" * 300), (431, "head_too_large")),
    (POST + b"a: b\r\n" * 6 + b"\r\n", (431, "too_many_headers")),
    (b"GET / HTTP/1.1\r\n\r\n", (400, "missing_host")),
    (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", (400, "duplicate_header")),
    (b"GET x HTTP/1.1\r\nHost: a\r\n\r\n", (400, "bad_request")),
]


@pytest.mark.parametrize(("data", "refusal"), LIMITED)
@pytest.mark.parametrize("behind", [b"", GET, b"\x00\x00"])
@pytest.mark.parametrize("by_bytes", [False, True])
def test_refusal_is_the_last_answer(
    data: bytes, refusal: tuple[int, str], behind: bytes, by_bytes: bool
) -> None:
    """The first fault decides, what stands behind it is dropped, then the end."""
    one = client(head_bytes=200, headers=5, body_bytes=20)
    one.send(*(single(data + behind) if by_bytes else [data + behind]))
    assert one.port.log == [refusal]
    assert one.transport.written.startswith(b"HTTP/1.1 %d " % refusal[0])
    assert b"\r\nconnection: close\r\n" in one.transport.written
    assert one.transport.has_ended
    assert not one.transport.aborted


@pytest.mark.parametrize("data", [POST + b"X: " + b"x" * 300, b"GET /" + b"x" * 300])
def test_head_without_an_end_is_refused_at_its_limit(data: bytes) -> None:
    """Nobody waits for the rest of it."""
    for segments in ([data], single(data)):
        assert log(*segments, head_bytes=200) == [(431, "head_too_large")]


def test_refusal_waits_for_the_answer_before_it() -> None:
    """A good request ahead of a bad one gets its answer."""
    one = client(answers_at_once=False)
    one.send(GET + b"\x00bad")
    assert len(one.port.log) == 1
    one.answer()
    assert one.port.log[1:] == [(400, "bad_request")]


def test_bytes_behind_the_last_request_are_of_no_one() -> None:
    """After Connection: close nothing is read, nor refused."""
    last = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    for behind in (GET, b"\x00garbage"):
        one = client()
        one.send(last + behind)
        assert len(one.port.log) == 1
        assert one.transport.closing


def test_continue_is_said_once_and_only_if_the_body_may_come() -> None:
    """A body that is too large is refused before it is sent."""
    expect = b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    one = client(body_bytes=20)
    one.send(POST + expect % 3, b"abc")
    assert one.transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert one.port.works[0].body == b"abc"
    large = client(body_bytes=20)
    large.send(POST + expect % 30)
    assert large.transport.written.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("answers_at_once", [False, True])
def test_continue_is_said_when_the_turn_comes(answers_at_once: bool) -> None:
    """A client behind a running answer would wait in vain; it is said once."""
    one = client(answers_at_once=answers_at_once)
    one.send(GET + POST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
    if not answers_at_once:
        assert one.transport.written == b""
        one.answer()
    assert one.transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    one.send(b"ab", b"c")
    assert one.port.works[1].body == b"abc"
    assert one.transport.written.count(b"100 Continue") == 1


def test_continue_is_not_said_for_a_body_that_is_there() -> None:
    """Nobody waits for it, neither at once nor behind a running answer."""
    whole = POST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc"
    one = client(answers_at_once=False)
    one.send(whole + whole + GET[:9])
    one.answer()
    one.answer()
    assert len(one.port.works) == 2
    assert one.transport.written == b""


def test_trailers_do_not_become_headers() -> None:
    """They could otherwise bring in what the head was checked for."""
    one = client()
    one.send(
        POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nHost: evil\r\n\r\n"
    )
    assert one.port.works[0].body == b"x"
    assert one.port.works[0].head.passing == []


def test_slow_request_is_408() -> None:
    """The message names the part that was slow."""
    for sent, part in (
        (GET[:9], b"headers"),
        (POST + b"Content-Length: 3\r\n\r\n", b"body"),
    ):
        one = client()
        one.send(sent)
        assert one.connection.deadline < time.monotonic() + 31
        one.connection.expire()
        assert one.port.log == [(408, "client_timeout")]
        assert part in one.transport.written
        one.connection.expire()
        assert one.transport.aborted


HEADER_S, BODY_S, KEEP_ALIVE_S = 1000.0, 2000.0, 3000.0


@pytest.mark.parametrize(
    ("begun", "patience_s", "part"),
    [
        (GET[:9], HEADER_S, b"headers"),
        (POST + b"Content-Length: 3\r\n\r\n", BODY_S, b"body"),
        (b"", KEEP_ALIVE_S, b""),
    ],
)
@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("answers_at_once", [False, True])
def test_begun_request_gets_its_own_time_when_its_turn_comes(
    begun: bytes, patience_s: float, part: bytes, joins: bool, answers_at_once: bool
) -> None:
    """Behind an answer it may be slow; after it, no slower than any other."""
    one = client(
        answers_at_once=answers_at_once,
        header_s=HEADER_S,
        body_s=BODY_S,
        keep_alive_s=KEEP_ALIVE_S,
    )
    one.send(*([GET + begun] if joins or not begun else [GET, begun]))
    one.answer_all()
    assert 0 <= time.monotonic() + patience_s - one.connection.deadline < 100
    one.connection.expire()
    assert one.port.log[1:] == ([(408, "client_timeout")] if begun else [])
    assert part in one.transport.written


def test_slow_head_is_not_given_more_time_by_each_byte() -> None:
    """Its time runs from its first byte, or from its turn."""
    one = client(header_s=HEADER_S)
    one.send(GET[:1])
    deadline = one.connection.deadline
    one.send(*single(GET[1:-1]))
    assert one.connection.deadline == deadline


def test_idle_connection_is_closed_without_a_word() -> None:
    """Nobody asked anything."""
    one = client()
    one.send(GET)
    one.connection.expire()
    assert one.transport.closing
    assert one.transport.written == b""


def test_deadline_during_an_answer_is_the_works() -> None:
    """The work knows whose fault it is."""
    one = client(answers_at_once=False)
    one.send(GET)
    one.connection.expire()
    assert one.port.works[0].calls == ["expired"]


def test_client_that_leaves_is_told_to_the_work_once() -> None:
    """Half-closed is left too; afterwards nothing is read."""
    one = client(answers_at_once=False)
    one.send(GET)
    one.connection.eof_received()
    assert one.transport.aborted
    one.connection.connection_lost(None)
    assert one.port.works[0].calls == ["gone"]
    assert one.port.log[-1] == ("closed",)
    one.connection.data_received(GET)
    assert len(one.port.works) == 1


def test_slow_reader_is_told_to_the_work() -> None:
    """Both ways; a request that comes while nothing is taken waits."""
    one = client(answers_at_once=False)
    one.connection.pause_writing()
    one.send(GET)
    assert one.port.works == []
    one.connection.resume_writing()
    one.connection.pause_writing()
    one.connection.resume_writing()
    assert one.port.works[0].calls == ["writable False", "writable True"]


def test_slow_reader_is_told_to_the_work_that_takes_over() -> None:
    """What waited for it, a queue or a tokenizer, had nothing to hold back."""
    one = client(answers_at_once=False)
    one.send(GET)
    one.connection.pause_writing()
    (waiting,) = one.port.works
    answering = FakeWork(one.port, one.connection, waiting.head, b"")
    one.connection.hand_over(answering)
    assert answering.calls == ["writable False"]


def test_full_port_answers_503() -> None:
    """With the name of the limit, and when to come again."""
    port = FakePort(FakeLimits())
    port.is_full = True
    one = FakeClient(port)
    one.send(GET)
    assert port.log == [(503, "too_many_connections")]
    assert b"retry-after: 1\r\n" in one.transport.written


def test_draining_closes_idle_connections_and_ends_busy_ones() -> None:
    """An answer that runs is finished; a request that comes is not begun."""
    idle, busy = client(), client(answers_at_once=False)
    idle.connection.drain()
    assert idle.transport.closing
    busy.send(GET + GET)
    busy.connection.drain()
    assert not busy.transport.closing
    busy.port.is_draining = True
    busy.answer()
    assert busy.transport.closing
    assert len(busy.port.works) == 1


def test_shutting_down_interrupts_the_work() -> None:
    """It may still say why."""
    one = client(answers_at_once=False)
    one.send(GET)
    one.connection.shut_down()
    assert one.port.works[0].calls == ["interrupted"]
    assert one.transport.closing


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.binary(max_size=80) | st.sampled_from([GET, UPGRADE, POST]), max_size=5)
)
def test_garbage_is_answered_or_waited_for(segments: list[bytes]) -> None:
    """Nothing raises, and there is at most one refusal, which is the last."""
    one = client()
    one.send(*segments)
    refusals = [at for at, entry in enumerate(one.port.log) if len(entry) == 2]
    assert refusals in ([], [len(one.port.log) - 1])
    assert one.transport.written.count(b"HTTP/1.1 4") == len(refusals)


KNOWN = POST + b"A: b\r\nContent-Length: 3\r\n\r\nabc"


@pytest.mark.parametrize(
    ("limits", "refusal"),
    [
        ({"headers": 2}, (431, "too_many_headers")),
        ({"head_bytes": 20}, (431, "head_too_large")),
        ({"body_bytes": 2}, (413, "body_too_large")),
    ],
)
def test_known_head_is_judged_by_the_limits_of_a_reload(
    limits: dict[str, int], refusal: tuple[int, str]
) -> None:
    """A client that was there before gets no more than one that comes."""
    one = client()
    one.send(KNOWN, KNOWN)
    one.port.read_limits = FakeLimits(**limits)
    one.send(KNOWN)
    assert one.port.log[2:] == [refusal]


def test_known_head_is_learned_anew_after_a_reload() -> None:
    """It is parsed once more, not each time from then on."""
    one = client()
    one.send(KNOWN, KNOWN)
    one.port.read_limits = FakeLimits(headers=50)
    one.send(KNOWN, KNOWN, KNOWN)
    heads = [work.head for work in one.port.works]
    assert heads[0] is heads[1]
    assert heads[1] is not heads[2]
    assert heads[2] is heads[3] is heads[4]


def test_known_head_is_forgotten_by_the_first_bytes_after_a_reload() -> None:
    """Also when those are a request in parts, from which nothing is learned."""
    one = client()
    one.send(KNOWN, KNOWN)
    one.port.read_limits = FakeLimits(headers=2)
    one.send(GET[:9], GET[9:], KNOWN)
    assert one.port.log[3:] == [(431, "too_many_headers")]


def test_end_of_a_head_is_not_learned_as_a_head() -> None:
    """It may look like one; alone, it is a request without a host."""
    end = b"POST /v1/y HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"
    one = client()
    one.send(POST + b"A: ", end, end)
    assert one.port.works[0].head.target == b"/v1/x"
    assert one.port.log[1:] == [(400, "missing_host")]
