"""Slow clients and slow engines: nothing cut, nothing piled up, nothing mixed up."""

import asyncio
import resource
import socket

import pytest
from conformance.raw_engine import STREAM_HEAD, Request, answer, chunk, event
from conformance.rig import PATIENCE_S, Client, Rig, StartRig, answer_ok, chat, post

MIB = 1 << 20
GET = b"GET /x HTTP/1.1\r\nHost: p\r\n\r\n"


def _file(size: int):  # type: ignore[no-untyped-def]
    async def serve(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b"x" * size, kind="application/octet-stream"))
        await writer.drain()

    return serve


async def _stalled(rig: Rig) -> Client:
    """Ask for a file, read nothing, and leave its end in the proxy's buffer."""
    client = await rig.connect()
    client.writer.transport.pause_reading()
    own = client.writer.get_extra_info("socket")
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    await rig.until(lambda: len(rig.app.port._connections) == 1, "accepted")
    transport = next(iter(rig.app.port._connections)).transport
    transport.set_write_buffer_limits(1 << 22)  # so that the engine is done first
    theirs = transport.get_extra_info("socket")
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    await client.send(b"GET /x HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n")
    await rig.until(lambda: transport.is_closing(), "the answer's end")
    assert transport.get_write_buffer_size() > 0
    return client


async def test_slow_reader_gets_its_whole_answer_after_a_close(
    start_rig: StartRig,
) -> None:
    """An answer that ends with the close is not cut while the client still reads."""
    rig = await start_rig(_file(200_000), timeouts={"idle_s": 60})
    client = await _stalled(rig)
    await rig.later(7)  # longer than the proxy lingers after its last byte
    client.writer.transport.resume_reading()
    assert len((await client.receive()).body) == 200_000


async def test_client_that_stops_reading_after_the_end_is_let_go(
    start_rig: StartRig,
) -> None:
    """Without progress for idle_s the rest of an answer is given up."""
    rig = await start_rig(_file(200_000), timeouts={"idle_s": 0.5})
    await _stalled(rig)
    await rig.later(7)  # its first look sees some progress, none from then on
    await rig.until(lambda: not rig.app.port._connections, "the connection let go")


@pytest.mark.parametrize("last", [GET, post(chat("x" * MIB))], ids=["none", "large"])
async def test_pressure_holds_across_pipelined_requests(
    start_rig: StartRig, last: bytes
) -> None:
    """The next answer waits until the client has taken the one before it.

    Whatever it waits for itself meanwhile, a connection or a large body's reader.
    """
    rig = await start_rig(_file(64 * MIB))
    client = await rig.connect()
    client.writer.transport.pause_reading()
    own = b"GET /v1/models HTTP/1.1\r\nHost: p\r\n\r\n"
    await client.send(own * 20_000 + last * 3)
    await rig.until(lambda: bool(rig.app.port._connections), "accepted")
    (connection,) = rig.app.port._connections
    await rig.until(lambda: connection._is_choked, "the client held to be full")
    await rig.later(0)
    assert connection.transport.get_write_buffer_size() < 4 * MIB
    assert len(rig.engines[0].requests) <= 1
    client.writer.transport.resume_reading()
    for _ in range(20_000):
        assert (await client.receive()).status == 200
    assert len((await client.receive()).body) == 64 * MIB


async def test_connection_with_an_unsent_body_is_not_used_again(
    start_rig: StartRig,
) -> None:
    """An engine that answers before it has read the body keeps no one waiting."""
    release = asyncio.Event()

    async def serve(request: Request, writer: asyncio.StreamWriter) -> None:
        await answer_ok(request, writer)

    rig = await start_rig(serve)

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"GET /health" in head or b"GET /v1/models" in head:
            writer.write(answer(b'{"data":[]}'))
            writer.close()
        elif b"content-length: 2" in head.lower():
            writer.write(answer(b"{}"))
        else:
            writer.write(answer(b"{}", "413 Content Too Large"))
            await release.wait()
        writer.close()

    engine = await asyncio.start_server(early, "127.0.0.1", 0, limit=1024)
    port = engine.sockets[0].getsockname()[1]
    backend = {"name": "e", "url": f"http://127.0.0.1:{port}", "engine": "openai"}
    second = await start_rig(backends=[backend], health={"interval_s": 60})
    await second.all_up()
    reply = await second.request(post(b"x" * 30 * MIB))
    assert reply.status == 413
    async with asyncio.timeout(PATIENCE_S):
        assert (await second.request(post(b"{}"))).status == 200
    release.set()
    engine.close()
    assert rig.engines[0].requests == []


async def test_late_death_of_a_kept_connection_is_no_old_age(
    start_rig: StartRig,
) -> None:
    """A lone engine that dies at work is not sent the same prompt again."""

    async def serve(request: Request, writer: asyncio.StreamWriter) -> None:
        if len(rig.engines[0].requests) == 1:
            await answer_ok(request, writer)
        else:
            rig.clock.ahead_s += 1.5
            writer.transport.abort()

    rig = await start_rig(serve)
    assert (await rig.request(post(chat()))).status == 200
    assert (await rig.request(post(chat()))).status == 502
    assert len(rig.engines[0].requests) == 2


async def test_engines_request_id_gives_way_to_ours(start_rig: StartRig) -> None:
    """The answer carries one X-Request-Id, whatever the engine sends."""

    async def serve(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b"{}", extra="X-Request-Id: its-own\r\n"))

    rig = await start_rig(serve)
    reply = await rig.request(post(chat(), extra="X-Request-Id: ours\r\n"))
    assert reply.values("x-request-id") == ["ours"]


async def test_tiny_chunks_cost_little_memory(start_rig: StartRig) -> None:
    """A body in chunks of two bytes takes about its own size."""
    rig = await start_rig(answer_ok)
    client = await rig.connect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    head = b"POST /v1/x HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n"
    await client.send(head)
    for _ in range(100):
        await client.send(chunk(b"xy") * 10_000)
    await client.send(b"0\r\n\r\n")
    assert (await client.receive()).status == 200
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 25 * 1024  # KiB, for 2 MB of body; its pieces took 100 MB


async def test_other_versions_of_http_are_refused(start_rig: StartRig) -> None:
    """HTTP/0.9 and HTTP/2.0 request lines get a 400."""
    rig = await start_rig(answer_ok)
    for line in (b"GET /\r\n\r\n", b"GET / HTTP/2.0\r\nHost: p\r\n\r\n"):
        client = await rig.connect()
        await client.send(line)
        assert (await client.receive()).status == 400
    assert rig.engines[0].requests == []


async def test_connection_serves_on_after_a_failed_stream(start_rig: StartRig) -> None:
    """A client may use its connection again; left idle, it is closed soon."""

    async def die(request: Request, writer: asyncio.StreamWriter) -> None:
        if b'"stream": true' in request.body:
            writer.write(STREAM_HEAD + event("a"))
            await writer.drain()
            await asyncio.sleep(0.01)
            writer.transport.abort()
        else:
            await answer_ok(request, writer)

    rig = await start_rig(die)
    client = await rig.connect()
    for _ in range(2):
        await client.send(post(chat(stream=True)))
        assert b"upstream_lost" in (await client.receive()).body
        await client.send(post(chat()))
        assert (await client.receive()).status == 200
    await client.send(post(chat(stream=True)))
    assert b"upstream_lost" in (await client.receive()).body
    await rig.later(2)
    async with asyncio.timeout(PATIENCE_S):
        assert await client.is_closed()
