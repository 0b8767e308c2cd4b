"""Many at once: nothing lost, nothing twice, nothing changed."""

import asyncio
import random

from conformance.raw_engine import DONE, STREAM_HEAD, Request, answer, event
from conformance.rig import Client, Rig, StartRig, chat, post


async def test_300_streams_are_byte_identical(start_rig: StartRig) -> None:
    """Every one of 300 concurrent streams equals what its engine wrote."""
    written: dict[str, bytes] = {}

    async def stream(request: Request, writer: asyncio.StreamWriter) -> None:
        name = request.values("x-request-id")[0]
        source = random.Random(name)
        pieces = [event("é" * source.randrange(1, 200)) for _ in range(20)]
        written[name] = b"".join(pieces) + DONE
        writer.write(STREAM_HEAD)
        data = written[name]
        while data:
            cut = source.randrange(1, 700)
            writer.write(data[:cut])
            data = data[cut:]
            await writer.drain()
            await asyncio.sleep(0)

    rig = await start_rig(stream, stream, stream)

    async def read(name: str) -> bytes:
        client = await rig.connect()
        extra = f"X-Request-Id: {name}\r\nConnection: close\r\n"
        await client.send(post(chat(stream=True), extra=extra))
        await client.reader.readuntil(b"\r\n\r\n")
        return await client.reader.read()

    names = [f"stream-{at}" for at in range(300)]
    bodies = await asyncio.gather(*(read(name) for name in names))
    for name, body in zip(names, bodies, strict=True):
        assert body == written[name]
    await rig.released()


async def test_10000_requests_outlive_a_killed_backend(start_rig: StartRig) -> None:
    """One of three backends is killed and restarted under load: no request fails
    but those whose stream had begun on it, and none is answered twice.
    """
    served: dict[str, int] = {}
    begun: set[str] = set()

    async def serve(request: Request, writer: asyncio.StreamWriter) -> None:
        name = request.values("x-request-id")[0]
        if b'"stream"' in request.body:
            begun.add(name)
            writer.write(STREAM_HEAD + event("a"))
            await writer.drain()
            await asyncio.sleep(0.002)
            writer.write(DONE)
        else:
            await asyncio.sleep(0.001)
            writer.write(answer(b"{}"))
        await writer.drain()
        served[name] = served.get(name, 0) + 1

    rig = await start_rig(serve, serve, serve, health={"interval_s": 0.2})
    names = iter(range(10_000))
    failed: set[str] = set()
    answered = 0

    async def one(client: Client, at: int) -> None:
        nonlocal answered
        name = f"r{at}"
        body = chat(
            f"prompt {at % 50} " * 20, **({"stream": True} if at % 4 == 0 else {})
        )
        await client.send(post(body, extra=f"X-Request-Id: {name}\r\n"))
        reply = await client.receive()
        if reply.status == 200 and b"upstream_lost" not in reply.body:
            answered += 1
        else:
            failed.add(name)
            raise ConnectionError("a failed stream ends with the close")

    async def user() -> None:
        client = await rig.connect()
        for at in names:
            try:
                await one(client, at)
            except (asyncio.IncompleteReadError, ConnectionError):
                failed.add(f"r{at}")
                client = await rig.connect()

    users = [asyncio.create_task(user()) for _ in range(32)]
    await _kill_and_restart(rig, lambda: answered)
    await asyncio.gather(*users)
    assert answered + len(failed) == 10_000
    assert failed <= begun
    assert len(failed) <= 32
    assert max(served.values()) == 1
    await rig.released()


async def _kill_and_restart(rig: Rig, answered) -> None:  # type: ignore[no-untyped-def]
    engine = rig.engines[1]
    await rig.until(lambda: answered() > 2000, "2,000 answers")
    port = engine.port
    await engine.stop()
    before = len(engine.requests)
    await rig.until(lambda: answered() > 4000, "4,000 answers")
    await engine.start(port)
    await rig.until(lambda: len(engine.requests) > before, "the restarted one serves")
