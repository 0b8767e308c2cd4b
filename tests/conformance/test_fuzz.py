"""Whatever a client sends, the proxy answers or closes, and serves the next one."""

import asyncio
import contextlib
import random
from collections.abc import Callable

import pytest
from conformance.raw_engine import DONE, STREAM_HEAD, Request, answer, event
from conformance.rig import PATIENCE_S, Client, Rig, StartRig, chat, post

BATCH = 8
NUM_BATCHES = 6
GOOD = post(chat())
SEEDS = [
    GOOD,
    post(chat("text " * 40, stream=True)),
    post(chat(), extra="Connection: close\r\n"),
    post(chat(), extra="Connection: upgrade\r\nUpgrade: h2c\r\n"),
    post(chat(), extra="Expect: 100-continue\r\n"),
    b"POST /v1/completions HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'1c;a=b\r\n{"model":"m","prompt":"abc"}\r\n0\r\nx: y\r\n\r\n',
    b"GET /livez HTTP/1.1\r\nHost: p\r\n\r\n",
    b"HEAD /v1/models HTTP/1.1\r\nHost: p\r\n\r\n",
    b"GET /old HTTP/1.0\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: p\r\n\r\n",
]
SPLICES = [
    *(b"\r\n", b"\n", b"\r", b"\x00", b" ", b":", b"\r\n\r\n", b"0", b"9999999999"),
    *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"\xff", b";", b","),
    *(b"HTTP/1.1", b"HTTP/1.0", b"\r\n ", b"GET / HTTP/1.1\r\nHost: p\r\n\r\n"),
]


async def engine_script(request: Request, writer: asyncio.StreamWriter) -> None:
    """Stream for those who ask, else answer with a length; a fake engine."""
    if b'"stream": true' in request.body:
        writer.write(STREAM_HEAD + event("a"))
        await writer.drain()
        writer.write(event("b") + DONE)
    elif request.line.startswith("HEAD "):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n")
    else:
        writer.write(answer(b'{"id":"x","usage":{"prompt_tokens":9}}'))


def mutated(rng: random.Random) -> bytes:
    """Damage one to three requests in a few places."""
    data = bytearray(b"".join(rng.choices(SEEDS, k=rng.randint(1, 3))))
    for _ in range(rng.randint(0, 3)):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                del data[at : at + rng.randint(1, 20)]
            case 2:
                data[at:at] = rng.choice(SPLICES)
            case _:
                data[at:at] = data[max(0, at - rng.randint(1, 60)) : at]
        data = data or bytearray(b"\r\n")
    return bytes(data)


def garbage(rng: random.Random) -> bytes:
    """Make bytes that mean nothing, with line ends among them."""
    pieces = [rng.randbytes(rng.randint(1, 60)) for _ in range(rng.randint(1, 5))]
    return rng.choice([b"\r\n", b"", b"\r\n\r\n"]).join(pieces)


def whole(rng: random.Random) -> bytes:
    """Pipeline a few good requests."""
    return b"".join(rng.choices(SEEDS, k=rng.randint(1, 4)))


async def send_in_pieces(client: Client, data: bytes, rng: random.Random) -> None:
    """Write in random pieces; the loop runs in between, no time passes."""
    while data:
        size = rng.choice([1, 2, 7, 40, 200, len(data)])
        await client.send(data[:size])
        data = data[size:]
        await asyncio.sleep(0)


async def abuse(
    rig: Rig, make: Callable[[random.Random], bytes], rng: random.Random
) -> None:
    """Send one stream, then leave in a random way, or read until the close."""
    client = await rig.connect()
    data = make(rng)
    leaves = rng.choice(["reset", "half-close", "close", "stay"])
    if leaves == "reset":
        data = data[: rng.randint(0, len(data))]
    with contextlib.suppress(OSError):
        await send_in_pieces(client, data, rng)
        if leaves == "half-close":
            client.writer.write_eof()
        if leaves in ("half-close", "stay"):
            await read_to_the_end(client)
    client.close()
    with contextlib.suppress(OSError):
        await client.writer.wait_closed()


async def read_to_the_end(client: Client) -> None:
    """Read what comes; the deadlines of the proxy end what it still waits for."""
    async with asyncio.timeout(PATIENCE_S):
        while await client.reader.read(65536):
            pass


async def assert_serves(rig: Rig) -> None:
    """See a good request answered, and nothing left on the books."""
    async with asyncio.timeout(PATIENCE_S):
        client = await rig.connect()
        await client.send(GOOD)
        reply = await client.receive()
    assert reply.status == 200
    client.close()
    await rig.released()


@pytest.mark.parametrize("make", [garbage, mutated, whole])
async def test_any_bytes_are_answered_or_closed(
    make: Callable[[random.Random], bytes],
    start_rig: StartRig,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every connection ends in time, no load stays, and nothing broke inside."""
    short = {"header_s": 0.2, "body_s": 0.2, "keep_alive_s": 0.2}
    rig = await start_rig(engine_script, timeouts=short)
    for first in range(0, NUM_BATCHES * BATCH, BATCH):
        seeds = range(first, first + BATCH)
        await asyncio.gather(*(abuse(rig, make, random.Random(one)) for one in seeds))
        await assert_serves(rig)
        rig.clients.clear()
    broken = [one.getMessage() for one in caplog.records if one.exc_info]
    assert broken == []


async def test_good_request_after_a_good_one_however_split(start_rig: StartRig) -> None:
    """Random pieces of a sequence of requests give each its own answer."""
    rig = await start_rig(engine_script)
    for seed in range(25):
        rng = random.Random(seed)
        texts = ["x" * rng.choice([0, 1, 9, 10, 99, 400]) for _ in range(6)]
        client = await rig.connect()
        before = len(rig.engines[0].requests)
        stream = b"".join(post(chat(text)) for text in texts)
        sending = asyncio.create_task(send_in_pieces(client, stream, rng))
        for _ in texts:
            assert (await client.receive()).status == 200
        await sending
        bodies = [one.body for one in rig.engines[0].requests[before:]]
        assert bodies == [post(chat(text)).split(b"\r\n\r\n", 1)[1] for text in texts]
        client.close()
    await rig.released()
