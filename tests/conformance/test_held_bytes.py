"""The bodies of all clients together are bounded, whole or not."""

import asyncio

from conformance.raw_engine import Request
from conformance.rig import Client, Rig, StartRig, answer_ok, chat, post

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: proxy\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
LIMIT = 1_000_000
PART = 300_000


def chunk_of(size: int) -> bytes:
    return b"%x\r\n%b\r\n" % (size, b"x" * size)


async def unfinished(rig: Rig) -> Client:
    """Send a part of a body that says nothing of its length."""
    client, before = await rig.connect(), rig.app.port.held_bytes
    await client.send(CHUNKED + chunk_of(PART))
    await rig.until(
        lambda: rig.app.port.held_bytes >= min(before + PART, LIMIT), "it has come"
    )
    return client


async def refused(client: Client) -> None:
    """Check that it is, and that it may try again."""
    reply = await client.receive()
    assert reply.status == 503
    assert reply.value("retry-after") == "1"
    error = reply.json()["error"]
    assert error["code"] == "overloaded"
    assert "limits.buffered_bytes" in error["message"]
    assert await client.is_closed()


async def test_unfinished_bodies_count_together(start_rig: StartRig) -> None:
    """The one that passes the bound is refused; the others go on."""
    rig = await start_rig(answer_ok, limits={"buffered_bytes": LIMIT})
    clients = [await unfinished(rig) for _ in range(3)]
    last = await rig.connect()
    await last.send(CHUNKED + chunk_of(PART))
    await refused(last)
    assert rig.app.ledger.rejections["overloaded"] == 1
    await clients[0].send(b"0\r\n\r\n")
    assert (await clients[0].receive()).status == 200
    for client in clients:
        client.close()
    await rig.until(lambda: rig.app.port.held_bytes == 0, "all let go")
    assert (await rig.request(post(chat("x" * PART)))).status == 200
    assert rig.app.port.held_bytes == 0


async def test_a_body_without_room_is_refused_before_it_comes(
    start_rig: StartRig,
) -> None:
    """Its length is known from the head, and 100 Continue is not said."""
    rig = await start_rig(answer_ok, limits={"buffered_bytes": LIMIT})
    await unfinished(rig)
    client = await rig.connect()
    length = b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % (LIMIT - PART)
    await client.send(HEAD + length)
    await refused(client)


async def test_bodies_count_until_they_are_answered(start_rig: StartRig) -> None:
    """An engine that takes its time holds them here for a retry."""
    may_answer = asyncio.Event()

    async def slow(request: Request, writer: asyncio.StreamWriter) -> None:
        await may_answer.wait()
        await answer_ok(request, writer)

    rig = await start_rig(slow, limits={"buffered_bytes": LIMIT})
    data = post(chat("x" * (LIMIT - PART)))
    client = await rig.connect()
    await client.send(data)
    await rig.until(lambda: bool(rig.engines[0].requests), "it is at the engine")
    assert rig.app.port.held_bytes >= LIMIT - PART
    for body in (data, post(chat("x" * (PART + 1000)))):
        other = await rig.connect()
        await other.send(body)
        await refused(other)
    may_answer.set()
    assert (await client.receive()).status == 200
    await rig.until(lambda: rig.app.port.held_bytes == 0, "let go")
    await client.send(data)
    assert (await client.receive()).status == 200
