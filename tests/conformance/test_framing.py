"""Ambiguous framing is refused with 400 and the close, never guessed."""

import pytest
from conformance.raw_engine import chunk
from conformance.rig import StartRig, answer_ok, chat, post

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: proxy\r\n"

AMBIGUOUS = {
    "length and coding": HEAD
    + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding and length": HEAD
    + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "list of lengths": HEAD + b"Content-Length: 3, 3\r\n\r\nabc",
    "signed length": HEAD + b"Content-Length: +3\r\n\r\nabc",
    "negative length": HEAD + b"Content-Length: -3\r\n\r\nabc",
    "huge length": HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "two codings": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "identity": HEAD + b"Transfer-Encoding: identity\r\n\r\n",
    "unknown coding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "vertical tab": HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "obs-fold": HEAD + b"X-A: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    "folded coding": HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "bare lf": b"POST / HTTP/1.1\nHost: proxy\nContent-Length: 0\n\n",
    "bare lf in head": HEAD + b"X-A: a\nContent-Length: 0\r\n\r\n",
    "bare cr in head": HEAD + b"X-A: a\rContent-Length: 0\r\n\r\n",
    "space before colon": HEAD + b"Content-Length : 0\r\n\r\n",
    "nul in a value": HEAD + b"X-A: a\x00b\r\nContent-Length: 0\r\n\r\n",
    "chunk size of letters": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    "chunk size with 0x": HEAD
    + b"Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
    "chunk size with space": HEAD
    + b"Transfer-Encoding: chunked\r\n\r\n3 \r\nabc\r\n0\r\n\r\n",
    "chunk lines in lf": HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\nabc\n0\n\n",
    "chunk longer than said": HEAD
    + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
    "no host": b"GET /v1/x HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /v1/x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "two authorizations": HEAD
    + b"Authorization: a\r\nAuthorization: b\r\nContent-Length: 0\r\n\r\n",
    "coding in 1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "unknown version": b"GET / HTTP/3.7\r\nHost: a\r\n\r\n",
    "http2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "not http": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n",
}


@pytest.mark.parametrize("name", AMBIGUOUS)
async def test_ambiguous_framing_is_400_and_close(
    name: str, start_rig: StartRig
) -> None:
    """Each is refused in OpenAI's shape, and nothing of it reaches an engine."""
    rig = await start_rig(answer_ok)
    client = await rig.connect()
    await client.send(AMBIGUOUS[name])
    reply = await client.receive()
    assert reply.status == 400
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    assert await client.is_closed()
    assert rig.engines[0].requests == []
    assert (await rig.request(post(chat()))).status == 200


async def test_smuggled_request_is_not_served(start_rig: StartRig) -> None:
    """What hides behind an ambiguous body never becomes a request."""
    rig = await start_rig(answer_ok)
    client = await rig.connect()
    inner = b"GET /secret HTTP/1.1\r\nHost: proxy\r\n\r\n"
    await client.send(
        HEAD
        + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        % len(inner)
        + inner
    )
    assert (await client.receive()).status == 400
    assert await client.is_closed()
    assert rig.engines[0].requests == []


async def test_chunked_request_arrives_with_a_length(start_rig: StartRig) -> None:
    """Chunks, extensions and trailers are undone; the body is the same bytes."""
    rig = await start_rig(answer_ok)
    body = b'{"model":"m","prompt":"a longer prompt than before"}'
    reply = await rig.request(
        b"POST /v1/completions HTTP/1.1\r\nHost: p\r\n"
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"%x;ext=1\r\n%b\r\n" % (9, body[:9])
        + chunk(body[9:])
        + b"0\r\nX-Trailer: 1\r\n\r\n"
    )
    assert reply.status == 200
    received = rig.engines[0].requests[0]
    assert received.body == body
    assert received.values("content-length") == [str(len(body))]
    assert received.values("transfer-encoding") == []
    assert received.values("x-trailer") == []


async def test_pipelined_requests_are_answered_in_order(start_rig: StartRig) -> None:
    """Two requests in one segment get two answers, first come first served."""

    async def echo(request, writer):  # type: ignore[no-untyped-def]
        await answer_ok(request, writer)

    rig = await start_rig(echo)
    client = await rig.connect()
    await client.send(
        post(chat("one"), extra="X-Request-Id: one\r\n")
        + post(chat("two"), extra="X-Request-Id: two\r\n")
        + b"GET /livez HTTP/1.1\r\nHost: p\r\n\r\n"
    )
    ids = [(await client.receive()).value("x-request-id") for _ in range(2)]
    assert ids == ["one", "two"]
    assert (await client.receive()).body == b'{"status":"alive"}'


async def test_request_after_connection_close_is_ignored(start_rig: StartRig) -> None:
    """Bytes behind a request that announced the close are of no one."""
    rig = await start_rig(answer_ok)
    client = await rig.connect()
    await client.send(post(chat(), extra="Connection: close\r\n") + post(chat()))
    reply = await client.receive()
    assert reply.status == 200
    assert reply.value("connection") == "close"
    assert await client.is_closed()
    assert len(rig.engines[0].requests) == 1


async def test_expect_continue_is_answered_before_the_body(start_rig: StartRig) -> None:
    """A client that asks first is told to go on; one beyond the limit is told no."""
    rig = await start_rig(answer_ok, limits={"body_bytes": 2000})
    client = await rig.connect()
    head, _, body = post(chat(), extra="Expect: 100-continue\r\n").partition(
        b"\r\n\r\n"
    )
    await client.send(head + b"\r\n\r\n")
    assert (await client.receive()).status == 100
    await client.send(body)
    assert (await client.receive()).status == 200
    assert rig.engines[0].requests[0].values("expect") == []
    big = await rig.connect()
    await big.send(HEAD + b"Expect: 100-continue\r\nContent-Length: 100000\r\n\r\n")
    assert (await big.receive()).status == 413


async def test_offered_upgrade_is_declined(start_rig: StartRig) -> None:
    """A request with Upgrade is answered in HTTP/1.1, the header kept back."""
    rig = await start_rig(answer_ok)
    client = await rig.connect()
    upgrade = (
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n"
    )
    await client.send(post(chat(), extra=upgrade))
    assert (await client.receive()).status == 200
    received = rig.engines[0].requests[0]
    for name in ("upgrade", "connection", "http2-settings"):
        assert received.values(name) == []
    await client.send(post(chat()))
    assert (await client.receive()).status == 200


async def test_http_1_0_client_gets_an_answer_without_chunks(
    start_rig: StartRig,
) -> None:
    """Chunks are undone for HTTP/1.0, and the close ends the body."""

    async def stream(request, writer):  # type: ignore[no-untyped-def]
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
            + chunk(b"ab")
            + chunk(b"cd")
            + b"0\r\n\r\n"
        )

    rig = await start_rig(stream)
    client = await rig.connect()
    await client.send(b"GET /x HTTP/1.0\r\n\r\n")
    reply = await client.receive()
    assert reply.body == b"abcd"
    assert reply.value("transfer-encoding") is None
    assert reply.value("connection") == "close"
