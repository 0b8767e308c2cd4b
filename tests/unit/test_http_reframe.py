"""A body that is framed anew keeps its bytes."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from unit.fake_http import CUTS, cut, receive

from warmroute.proxy.http.reframe import Reframer, without_transfer_encoding
from warmroute.proxy.http.splice import UsageFilter

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3}}\n\n'
PIECES = st.lists(st.one_of(st.binary(max_size=30), st.just(USAGE)), max_size=5)


def reframed(body: bytes, at: Sequence[int], reframer: Reframer) -> bytes:
    """Feed *body* in pieces, and take what is ready after each."""
    out = b""
    for piece in cut(body, at):
        reframer.feed(piece)
        out += reframer.take()
    return out + reframer.end()


@settings(max_examples=150, deadline=None)
@given(PIECES.map(b"".join), CUTS)
def test_new_chunks_hold_the_same_body(body: bytes, at: Sequence[int]) -> None:
    """A strict parser reads them to the byte, and sees their end."""
    framed = reframed(body, at, Reframer(chunked=True, usage_filter=None))
    receiver, _ = receive([HEAD + framed])
    assert receiver.ends == ["ended"]
    assert receiver.body_bytes == body


@settings(max_examples=50, deadline=None)
@given(PIECES.map(b"".join), CUTS)
def test_body_without_chunks_is_the_bytes_alone(body: bytes, at: Sequence[int]) -> None:
    """The close of the connection ends it."""
    assert reframed(body, at, Reframer(chunked=False, usage_filter=None)) == body


@settings(max_examples=50, deadline=None)
@given(CUTS)
def test_dropped_event_leaves_no_empty_chunk(at: Sequence[int]) -> None:
    """An empty chunk would end the body early."""
    reframer = Reframer(chunked=True, usage_filter=UsageFilter())
    body = b"data: 1\n\n" + USAGE + b"data: [DONE]\n\ndata: open"
    receiver, _ = receive([HEAD + reframed(body, at, reframer)])
    assert receiver.ends == ["ended"]
    assert receiver.body_bytes == body.replace(USAGE, b"")


def test_transfer_encoding_leaves_the_head() -> None:
    """Whatever its case; nothing else does."""
    raw = b"HTTP/1.1 200 OK\r\ntransfer-ENCODING: chunked\r\nX-Transfer-Encoding: a\r\n"
    assert without_transfer_encoding(raw) == (
        b"HTTP/1.1 200 OK\r\nX-Transfer-Encoding: a\r\n"
    )
