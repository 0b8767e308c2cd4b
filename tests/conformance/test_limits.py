"""Every bound has its clear answer, and the next request is served."""

import asyncio
import json

import pytest
from conformance.raw_engine import STREAM_HEAD, Request, event
from conformance.rig import StartRig, answer_ok, chat, post

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: proxy\r\n"


async def test_large_head_is_431(start_rig: StartRig) -> None:
    """A head over the limit is refused, complete or not."""
    rig = await start_rig(answer_ok, limits={"head_bytes": 2000})
    for head in (
        HEAD + b"X-A: " + b"a" * 3000 + b"\r\n\r\n",
        HEAD + b"X-A: " + b"a" * 300_000,
        b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nHost: p\r\n\r\n",
    ):
        client = await rig.connect()
        await client.send(head)
        reply = await client.receive()
        assert reply.status == 431
        assert "limits.head_bytes" in reply.json()["error"]["message"]
    assert (await rig.request(post(chat()))).status == 200


async def test_many_headers_are_431(start_rig: StartRig) -> None:
    """More headers than allowed are refused, and the limit is named."""
    rig = await start_rig(answer_ok, limits={"headers": 20})
    reply = await rig.request(HEAD + b"X: 1\r\n" * 30 + b"\r\n")
    assert reply.status == 431
    assert "limits.headers" in reply.json()["error"]["message"]


@pytest.mark.parametrize("chunked", [False, True])
async def test_large_body_is_413_even_while_it_is_sent(
    chunked: bool, start_rig: StartRig
) -> None:
    """A client that goes on sending still reads its 413; 200 MB are no exception."""
    rig = await start_rig(answer_ok, limits={"body_bytes": 1_000_000})
    client = await rig.connect()
    if chunked:
        await client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    else:
        await client.send(HEAD + b"Content-Length: 200000000\r\n\r\n")
    piece = b"x" * 1_000_000
    framed = b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece

    async def upload() -> None:
        for _ in range(200):
            await client.send(framed)

    uploading = asyncio.create_task(upload())
    reply = await client.receive()
    assert reply.status == 413
    assert "limits.body_bytes" in reply.json()["error"]["message"]
    client.close()
    await asyncio.gather(uploading, return_exceptions=True)
    assert (await rig.request(post(chat()))).status == 200


async def test_slow_loris_is_408(start_rig: StartRig) -> None:
    """Headers that trickle in are cut off, however steadily they trickle."""
    rig = await start_rig(answer_ok, timeouts={"header_s": 0.6})
    client = await rig.connect()
    receiving = asyncio.create_task(client.receive())
    for byte in HEAD:
        if receiving.done():
            break
        client.writer.write(bytes([byte]))
        await asyncio.sleep(0.05)
    reply = await receiving
    assert reply.status == 408
    assert await client.is_closed()


async def test_slow_body_is_408(start_rig: StartRig) -> None:
    """A body that stops coming is cut off."""
    rig = await start_rig(answer_ok, timeouts={"body_s": 0.4})
    client = await rig.connect()
    await client.send(HEAD + b"Content-Length: 100\r\n\r\nabc")
    assert (await client.receive()).status == 408


async def test_idle_connection_is_closed_quietly(start_rig: StartRig) -> None:
    """A kept connection that asks for nothing is closed without an answer."""
    rig = await start_rig(answer_ok, timeouts={"keep_alive_s": 0.4})
    client = await rig.connect()
    await client.send(post(chat()))
    assert (await client.receive()).status == 200
    assert await client.is_closed()


async def test_too_many_connections_are_503(start_rig: StartRig) -> None:
    """Beyond limits.connections a client is told so; others are served."""
    rig = await start_rig(answer_ok, limits={"connections": 3})
    clients = [await rig.connect() for _ in range(3)]
    for client in clients:
        await client.send(post(chat()))
        assert (await client.receive()).status == 200
    reply = await (await rig.connect()).receive()
    assert reply.status == 503
    assert reply.value("retry-after") == "1"
    assert reply.json()["error"]["code"] == "too_many_connections"
    clients[0].close()
    await rig.until(lambda: len(rig.app.port._connections) < 3, "a free place")
    assert (await rig.request(post(chat()))).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"model":"m"}',
        b'{"model":"m","messages":[]}',
        b'{"model":"m","messages":[{"role":"user","content":""}]}',
        json.dumps(
            {
                "model": "m",
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "image_url",
                                "image_url": {"url": "http://x/y.png"},
                            }
                        ],
                    }
                ],
            }
        ).encode(),
        json.dumps(chat("word " * 200_000)).encode(),
        b'{"model":"m","prompt":[1]}',
        b"\xff\xfe\x00",
        b'{"a":' * 5000,
    ],
    ids=[
        *("empty", "cut json", "null", "list", "promptless", "no messages"),
        *("empty prompt", "image only", "1 MB", "one token", "binary", "deep"),
    ],
)
async def test_any_body_is_routed(body: bytes, start_rig: StartRig) -> None:
    """What cannot be read is the engine's to judge; it is routed by load."""
    rig = await start_rig(answer_ok, policy="expected_ttft")
    assert (await rig.request(post(body))).status == 200
    assert rig.engines[0].requests[0].body == body
    await rig.released()


async def test_unknown_model_is_404(start_rig: StartRig) -> None:
    """The answer names the model, and those that are known."""
    rig = await start_rig(answer_ok)
    reply = await rig.request(post(chat(model="nope")))
    assert reply.status == 404
    error = reply.json()["error"]
    assert error["code"] == "model_not_found"
    assert "nope" in error["message"]
    assert "m" in error["message"]


async def test_first_byte_timeout_is_504(start_rig: StartRig) -> None:
    """An engine that never answers is given up, and the load released."""

    async def silent(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    rig = await start_rig(silent, answer_ok, timeouts={"first_byte_s": 0.4})
    rig.app.fleet.drain("b1")
    reply = await rig.request(post(chat()))
    assert reply.status == 504
    assert reply.json()["error"]["code"] == "upstream_timeout"
    await rig.released()
    assert len(rig.engines[1].requests) == 0


async def test_idle_stream_ends_with_an_error_event(start_rig: StartRig) -> None:
    """A stream that stands still is ended in a way that clients can read."""

    async def stall(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + event("a"))
        await asyncio.Event().wait()

    rig = await start_rig(stall, timeouts={"idle_s": 0.4})
    reply = await rig.request(post(chat(stream=True)))
    assert b"upstream_timeout" in reply.body
    await rig.released()
