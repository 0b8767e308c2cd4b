"""What passes through stays as it was: bodies, headers, streams, errors."""

import asyncio
import gzip
import json
from urllib.parse import unquote

import pytest
from conformance.raw_engine import (
    DONE,
    STREAM_HEAD,
    Request,
    answer,
    chunk,
    event,
)
from conformance.rig import StartRig, answer_ok, chat, post

from warmroute.proxy.config import backend_config


async def test_body_reaches_the_engine_byte_for_byte(start_rig: StartRig) -> None:
    """Unknown fields, odd spacing and escapes are not touched."""
    rig = await start_rig(answer_ok)
    body = (
        b'{ "model" : "m",\n "max_completion_tokens":1, "x_vendor":{"a":[1,2.50]},'
        b'"messages":[{"role":"user","content":"\\u00e9\xc3\xa9"}] }  '
    )
    assert (await rig.request(post(body))).status == 200
    assert rig.engines[0].requests[0].body == body


async def test_headers_pass_but_hop_by_hop_ones(start_rig: StartRig) -> None:
    """All pass but hop-by-hop, those Connection names, and privileged ones."""
    rig = await start_rig(answer_ok)
    extra = (
        "Authorization: Bearer sk-1\r\nX-Custom: a\r\nX-Custom: b\r\n"
        "Connection: keep-alive, X-Private\r\nX-Private: 1\r\nKeep-Alive: timeout=5\r\n"
        "TE: trailers\r\nX-Data-Parallel-Rank: 3\r\nX-Override-Foo: 1\r\n"
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"
    )
    reply = await rig.request(post(chat(), extra=extra))
    assert reply.status == 200
    received = rig.engines[0].requests[0]
    assert received.values("authorization") == ["Bearer sk-1"]
    assert received.values("x-custom") == ["a", "b"]
    assert received.values("traceparent")[0].startswith("00-0af7651916cd43dd")
    for name in (
        *("connection", "x-private", "keep-alive", "te"),
        *("x-data-parallel-rank", "x-override-foo"),
    ):
        assert received.values(name) == [], name
    assert received.values("host") == [f"127.0.0.1:{rig.engines[0].port}"]
    assert received.values("x-forwarded-for") == ["127.0.0.1"]
    assert received.values("x-forwarded-host") == ["proxy"]
    assert received.values("x-forwarded-proto") == ["http"]


async def test_forwarded_for_is_appended_to(start_rig: StartRig) -> None:
    """An earlier proxy's address stays in front of the client's."""
    rig = await start_rig(answer_ok)
    await rig.request(post(chat(), extra="X-Forwarded-For: 10.1.1.1\r\n"))
    assert rig.engines[0].requests[0].values("x-forwarded-for") == [
        "10.1.1.1, 127.0.0.1"
    ]


async def test_request_id_is_kept_made_and_echoed(start_rig: StartRig) -> None:
    """A good id passes both ways; a bad one is replaced."""
    rig = await start_rig(answer_ok)
    reply = await rig.request(post(chat(), extra="X-Request-Id: abc-1\r\n"))
    assert reply.values("x-request-id") == ["abc-1"]
    assert rig.engines[0].requests[0].values("x-request-id") == ["abc-1"]
    reply = await rig.request(post(chat(), extra="X-Request-Id: a b\r\n"))
    made = reply.value("x-request-id")
    assert made is not None
    assert len(made) == 32
    assert rig.engines[0].requests[1].values("x-request-id") == [made]


async def test_stream_bytes_are_untouched(start_rig: StartRig) -> None:
    """Chunks arrive as sent, even one that is cut inside a UTF-8 character."""
    word = 'data: {"choices":[{"delta":{"content":"é"}}]}\n\n'.encode()
    cut = word.index(b"\xc3") + 1
    pieces = [chunk(word[:cut]), chunk(word[cut:]), event("b"), DONE]

    async def stream(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.005)

    rig = await start_rig(stream)
    client = await rig.connect()
    await client.send(post(chat(stream=True)))
    head = await client.reader.readuntil(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    expected = b"".join(pieces)
    assert await client.reader.readexactly(len(expected)) == expected
    await client.send(post(chat(stream=True)))
    assert (await client.receive()).status == 200


async def test_engine_errors_pass_byte_for_byte(start_rig: StartRig) -> None:
    """Status, content type and body of an engine's error are its own."""
    body = b'{"object":"error","message":"no","code":40001}'

    async def refuse(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(body, "422 Odd Reason", extra="x-engine: 1\r\n"))

    rig = await start_rig(refuse)
    reply = await rig.request(post(chat(stream=True)))
    assert (reply.status, reply.body) == (422, body)
    assert reply.value("content-type") == "application/json"
    assert reply.value("x-engine") == "1"


async def test_gzip_passes_both_ways(start_rig: StartRig) -> None:
    """Compressed bodies are neither unpacked nor packed."""
    packed = gzip.compress(json.dumps(chat()).encode())

    async def echo(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(request.body, extra="content-encoding: gzip\r\n"))

    rig = await start_rig(echo)
    reply = await rig.request(post(packed, extra="Content-Encoding: gzip\r\n"))
    assert reply.body == packed
    assert rig.engines[0].requests[0].values("content-encoding") == ["gzip"]


async def test_head_and_bodiless_answers_end(start_rig: StartRig) -> None:
    """HEAD, 204 and 304 have no body whatever their head says."""

    async def bodiless(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.line.startswith("HEAD"):
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"
                b"content-length: 500\r\n\r\n"
            )
        else:
            status = request.path.rsplit("/", 1)[1]
            writer.write(f"HTTP/1.1 {status} X\r\n\r\n".encode())

    rig = await start_rig(bodiless)
    client = await rig.connect()
    await client.send(b"HEAD /file HTTP/1.1\r\nHost: p\r\n\r\n")
    reply = await client.receive(bodiless=True)
    assert (reply.status, reply.value("content-length")) == (200, "500")
    for status in (204, 304):
        await client.send(b"GET /%d HTTP/1.1\r\nHost: p\r\n\r\n" % status)
        assert (await client.receive()).status == status


async def test_interim_answers_are_not_taken_for_final(start_rig: StartRig) -> None:
    """100 and 103 before the answer do not end it."""

    async def hint(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.write(answer(b"{}"))

    rig = await start_rig(hint)
    reply = await rig.request(post(chat()))
    assert (reply.status, reply.body) == (200, b"{}")


async def test_body_until_close_arrives_whole(start_rig: StartRig) -> None:
    """An answer without a length ends with the engine's close, and so does ours."""

    async def old(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
        writer.write(b"x" * 100_000)
        await writer.drain()
        writer.close()

    rig = await start_rig(old)
    client = await rig.connect()
    await client.send(b"GET /old HTTP/1.1\r\nHost: p\r\n\r\n")
    reply = await client.receive()
    assert len(reply.body) == 100_000
    assert reply.value("connection") == "close"


@pytest.mark.parametrize(
    "extra",
    [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil", b"garbage"],
    ids=["a second answer", "garbage"],
)
async def test_more_than_announced_never_reaches_a_client(
    extra: bytes, start_rig: StartRig
) -> None:
    """An engine that sends too much loses its connection; no client sees it."""

    async def smuggle(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b"{}") + extra)

    rig = await start_rig(smuggle)
    client = await rig.connect()
    await client.send(post(chat()) + post(chat(), extra="Connection: close\r\n"))
    data = await client.reader.read()
    assert data.count(b"upstream_lost") == 2
    assert len(rig.engines[0].requests) == 2
    assert b"evil" not in data
    assert b"garbage" not in data
    await rig.released()


async def test_truncated_answer_shows_as_truncated(start_rig: StartRig) -> None:
    """A body that stops short of its length is never completed by us."""

    async def stop_short(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"
            b"content-length: 100\r\n\r\nabc"
        )
        await writer.drain()
        writer.close()

    rig = await start_rig(stop_short)
    client = await rig.connect()
    await client.send(b"GET /x HTTP/1.1\r\nHost: p\r\n\r\n")
    await client.reader.readuntil(b"\r\n\r\n")
    assert await client.reader.readexactly(3) == b"abc"
    assert await client.is_closed()


async def test_failure_mid_stream_becomes_one_error_event(start_rig: StartRig) -> None:
    """The client gets an error event and the end of the stream, no [DONE]."""

    async def die(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + event("a"))
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.transport.abort()

    rig = await start_rig(die, answer_ok)
    rig.app.fleet.drain("b1")
    reply = await rig.request(post(chat(stream=True), extra="X-Request-Id: cut\r\n"))
    events = [e for e in reply.body.split(b"\n\n") if e]
    assert len(events) == 2
    error = json.loads(events[1].removeprefix(b"data: "))["error"]
    assert error["code"] == "upstream_lost"
    assert b"[DONE]" not in reply.body
    await rig.released()


async def test_failure_inside_a_chunk_cuts_the_connection(start_rig: StartRig) -> None:
    """Where no event would fit into the framing, the client sees the cut."""

    async def die(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + event("a") + b"40\r\ndata: {")
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.transport.abort()

    rig = await start_rig(die)
    client = await rig.connect()
    await client.send(post(chat(stream=True)))
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await client.receive()


async def test_any_path_passes_through(start_rig: StartRig) -> None:
    """Method, path and query reach the engine as sent."""
    rig = await start_rig(answer_ok)
    await rig.request(b"DELETE /some/thing?a=1&b=%20x HTTP/1.1\r\nHost: p\r\n\r\n")
    assert rig.engines[0].requests[0].line == "DELETE /some/thing?a=1&b=%20x HTTP/1.1"
    await rig.request(b"GET http://elsewhere/v1/x?y HTTP/1.1\r\nHost: p\r\n\r\n")
    assert rig.engines[0].requests[1].line == "GET /v1/x?y HTTP/1.1"


async def test_backend_key_replaces_the_clients(start_rig: StartRig) -> None:
    """One Authorization reaches the engine: the backend's where it has one."""
    engine = (await start_rig(answer_ok)).engines[0]
    keyed = {"name": "b0", "url": engine.url, "api_key": "backend-key"}
    rig = await start_rig(backends=[keyed])
    await rig.all_up()
    await rig.request(post(chat(), extra="Authorization: Bearer client\r\n"))
    assert engine.requests[0].values("authorization") == ["Bearer backend-key"]


async def test_usage_is_asked_for_and_hidden_again(start_rig: StartRig) -> None:
    """With truth.usage: inject the client sees the stream it asked for."""
    usage = {"prompt_tokens": 40, "completion_tokens": 2}
    usage["prompt_tokens_details"] = {"cached_tokens": 32}
    extra = chunk(
        b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
    )

    async def stream(request: Request, writer: asyncio.StreamWriter) -> None:
        assert json.loads(request.body)["stream_options"] == {"include_usage": True}
        writer.write(STREAM_HEAD + event("a") + event("b") + extra + DONE)

    rig = await start_rig(stream, truth={"usage": "inject"})
    reply = await rig.request(post(chat(stream=True), extra="X-Request-Id: u\r\n"))
    assert reply.body.count(b"data: ") == 3
    assert b"usage" not in reply.body
    assert reply.body.endswith(b"data: [DONE]\n\n")
    decision = rig.app.ledger.find("u")
    assert decision is not None
    assert (decision.cached_tokens, decision.output_tokens) == (32, 2)


async def test_ttft_is_not_the_role_chunk(start_rig: StartRig) -> None:
    """The first token is the first content, not the role that comes before."""
    go = asyncio.Event()

    async def stream(request: Request, writer: asyncio.StreamWriter) -> None:
        role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
        writer.write(STREAM_HEAD + chunk(role))
        await writer.drain()
        await go.wait()
        writer.write(event("a") + DONE)

    rig = await start_rig(stream)
    client = await rig.connect()
    await client.send(post(chat(stream=True)))
    await client.reader.readuntil(b"\n\n")
    assert rig.app.fleet.backends["b0"].candidate.decodes == 0
    go.set()
    await client.reader.readuntil(b'"a"')
    await rig.released()


async def test_explain_headers_on_request(start_rig: StartRig) -> None:
    """The answer says where it came from and why, only when asked."""
    rig = await start_rig(answer_ok)
    reply = await rig.request(post(chat(), extra="x-warmroute-explain: 1\r\n"))
    assert reply.value("x-warmroute-backend") == "b0"
    assert reply.value("x-warmroute-policy") == "least_requests"
    assert reply.value("x-warmroute-matched-tokens") == "0"
    assert reply.value("x-warmroute-reason")
    assert rig.engines[0].requests[0].values("x-warmroute-explain") == []
    reply = await rig.request(post(chat()))
    assert reply.value("x-warmroute-backend") is None


async def test_names_in_explain_headers_are_percent_encoded(
    start_rig: StartRig,
) -> None:
    """A header carries no letter beyond ASCII; each name is told apart all the same."""
    rig = await start_rig(answer_ok)
    fleet, name = rig.app.fleet, "büro/%1-\U0001f600"
    entry = {"name": name, "url": rig.engines[0].url, "engine": "openai"}
    fleet.add(backend_config(entry))
    fleet.drain("b0")
    await rig.until(lambda: fleet.backends[name].state == "up", "the new one up")
    reply = await rig.request(post(chat(), extra="x-warmroute-explain: 1\r\n"))
    told = reply.value("x-warmroute-backend")
    assert told == "b%C3%BCro/%251-%F0%9F%98%80"
    assert unquote(told) == name
