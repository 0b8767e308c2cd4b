"""A client that leaves takes its request with it, at every stage."""

import asyncio

import pytest
from conformance.raw_engine import STREAM_HEAD, Request, event
from conformance.rig import PATIENCE_S, StartRig, answer_ok, chat, post


async def silent(request: Request, writer: asyncio.StreamWriter) -> None:
    """Accept a request and never answer it."""
    await asyncio.Event().wait()


async def stalls_mid_stream(request: Request, writer: asyncio.StreamWriter) -> None:
    """Begin a stream and never end it."""
    writer.write(STREAM_HEAD + event("a"))
    await asyncio.Event().wait()


@pytest.mark.parametrize("stream", [False, True])
async def test_engine_sees_the_close_before_the_first_byte(
    stream: bool, start_rig: StartRig
) -> None:
    """Stream or not, the engine's connection closes as soon as the client's does."""
    rig = await start_rig(silent)
    client = await rig.connect()
    await client.send(post(chat(stream=stream)))
    await rig.engines[0].wait_for(1)
    assert rig.load() > 0
    client.close()
    async with asyncio.timeout(PATIENCE_S):
        await rig.engines[0].disconnected.wait()
    await rig.released()


async def test_engine_sees_the_close_mid_stream(start_rig: StartRig) -> None:
    """A reader that leaves in the middle of a stream stops the engine."""
    rig = await start_rig(stalls_mid_stream)
    client = await rig.connect()
    await client.send(post(chat(stream=True)))
    await client.reader.readuntil(b"\n\n")
    client.close()
    async with asyncio.timeout(PATIENCE_S):
        await rig.engines[0].disconnected.wait()
    await rig.released()


async def test_client_that_leaves_while_connecting_is_never_sent(
    start_rig: StartRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaving before the engine is connected sends it nothing."""
    rig = await start_rig(answer_ok)
    connecting = asyncio.Event()
    proceed = asyncio.Event()
    client = await rig.connect()
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def slow_connect(*args, **options):  # type: ignore[no-untyped-def]
        connecting.set()
        await proceed.wait()
        return await connect(*args, **options)

    monkeypatch.setattr(loop, "create_connection", slow_connect)
    await client.send(post(chat()))
    await connecting.wait()
    client.close()
    await rig.released()
    proceed.set()
    assert rig.engines[0].requests == []


async def test_cancelled_request_is_recorded_as_such(start_rig: StartRig) -> None:
    """The record of a cancelled request says 499, and teaches no rate."""
    rig = await start_rig(silent)
    client = await rig.connect()
    await client.send(post(chat(), extra="X-Request-Id: left\r\n"))
    await rig.engines[0].wait_for(1)
    before = rig.app.fleet.backends["b0"].candidate.rate
    client.close()
    await rig.released()
    decision = rig.app.ledger.find("left")
    assert decision is not None
    assert decision.status == 499
    assert rig.app.fleet.backends["b0"].candidate.rate == before


async def test_slow_reader_holds_the_engine_back(start_rig: StartRig) -> None:
    """With a client that reads nothing, memory stays bounded and the engine waits."""
    sent = 0

    async def flood(request: Request, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(STREAM_HEAD)
        while True:
            writer.write(event("x" * 60_000))
            await writer.drain()
            sent += 60_000

    rig = await start_rig(flood)
    client = await rig.connect()
    client.writer.transport.pause_reading()
    await client.send(post(chat(stream=True)))
    previous = -1
    while sent != previous or sent == 0:
        previous = sent
        await asyncio.sleep(0.3)
    assert sent < 64_000_000
    connection = next(iter(rig.app.port._connections))
    assert connection.transport.get_write_buffer_size() < 1_000_000
    client.writer.transport.resume_reading()
    await rig.until(lambda: sent > previous, "the engine going on")


async def test_client_that_never_reads_is_cut_after_the_idle_time(
    start_rig: StartRig,
) -> None:
    """A half-dead client keeps no slot for longer than timeouts.idle_s."""

    async def flood(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        while True:
            writer.write(event("x" * 60_000))
            await writer.drain()

    rig = await start_rig(flood, timeouts={"idle_s": 0.5})
    client = await rig.connect()
    client.writer.transport.pause_reading()
    await client.send(post(chat(stream=True)))
    await rig.engines[0].wait_for(1)
    await rig.released()
    assert rig.app.fleet.backends["b0"].breaker.state == "closed"
