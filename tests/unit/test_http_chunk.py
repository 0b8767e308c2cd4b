"""Whole chunks that need no parser."""

from hypothesis import given
from hypothesis import strategies as st

from warmroute.proxy.http.chunk import content_start


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


@given(st.binary(min_size=1, max_size=4080))
def test_content_of_a_whole_chunk_is_found(content: bytes) -> None:
    data = chunk(content)
    start = content_start(data)
    assert start > 0
    assert data[start:-2] == content


@given(st.binary(max_size=40), st.integers(0, 40))
def test_nothing_else_is_taken_for_one(content: bytes, at: int) -> None:
    """What is found in any bytes is one chunk in its plainest form."""
    whole = chunk(content)
    for data in (content, whole[:at], whole[at:], whole + whole, whole + b"0\r\n\r\n"):
        start = content_start(data)
        assert not start or data == chunk(data[start:-2])


def test_last_chunk_and_other_spellings_are_left_to_the_parser() -> None:
    """It judges what is not plain."""
    spellings = [
        *(b"", b"0\r\n\r\n", b"0\r\n", b"A\r\n0123456789\r\n", b"01\r\na\r\n"),
        *(b"1;x\r\na\r\n", b"1 \r\na\r\n", b"0x1\r\na\r\n", b"1\r\na\n\n", b"1\na\r\n"),
        *(b"2\r\na\r\n", b"-1\r\na\r\n", chunk(bytes(4096))),
    ]
    assert [content_start(data) for data in spellings] == [0] * len(spellings)
