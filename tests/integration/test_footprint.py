"""What a process needs of memory: little at first, and no more with every request."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from conformance.rig import Client, post
from integration import served
from integration.served import Served, Stage

stage = served.stage

MIB = 2**20
REPLY = (
    b'{"id":"x","usage":{"prompt_tokens":64,"completion_tokens":1,'
    b'"prompt_tokens_details":{"cached_tokens":0}}}'
)
LISTING = b'{"object":"list","data":[{"id":"m","object":"model"}]}'


class QuickEngine(asyncio.Protocol):
    """A fake engine that answers each request, which must come in one piece."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        body = LISTING if data.startswith(b"GET /v1/models") else REPLY
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
        self.transport.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)


@pytest.fixture
async def urls() -> AsyncIterator[list[str]]:
    """Start two engines; returns where they are."""
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(QuickEngine, "127.0.0.1", 0) for _ in range(2)]
    yield [f"http://127.0.0.1:{one.sockets[0].getsockname()[1]}" for one in servers]
    for server in servers:
        server.close()


async def serve(stage: Stage, urls: list[str]) -> Served:
    proxy = await stage.spawn(
        backends=[{"url": url, "engine": "openai"} for url in urls],
        policy="expected_ttft",
        index={"max_bytes": MIB},
        decisions={"records": 1000},
    )
    return await proxy.ready(len(urls))


def resident_bytes(proxy: Served) -> int:
    status = Path(f"/proc/{proxy.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def render(at: int) -> bytes:
    """Render the *at*-th request: a prompt of its own, an id of its own."""
    prompt = [at] * 64
    extra = f"x-request-id: r-{at}\r\n"
    return post({"model": "m", "prompt": prompt}, "/v1/completions", extra)


async def send(client: Client, numbers: range) -> None:
    for at in numbers:
        await client.send(render(at))
        assert (await client.receive()).status == 200


async def send_all(proxy: Served, start: int, num: int) -> None:
    """Send *num* requests over eight connections."""
    clients = [await proxy.connect() for _ in range(8)]
    async with asyncio.TaskGroup() as group:
        for at, client in enumerate(clients):
            group.create_task(send(client, range(start + at, start + num, 8)))


async def test_a_fresh_process_is_small(stage: Stage, urls: list[str]) -> None:
    """Below 80 MiB with an empty index, the metrics asked for once."""
    proxy = await serve(stage, urls)
    await proxy.admin("/metrics")
    assert resident_bytes(proxy) < 80 * MIB


async def test_requests_leave_nothing_behind(stage: Stage, urls: list[str]) -> None:
    """Once its rings are full, 20,000 requests of all kinds do not make it grow."""
    proxy = await serve(stage, urls)
    await send_all(proxy, 0, 5_000)
    full = resident_bytes(proxy)
    await send_all(proxy, 5_000, 20_000)
    assert resident_bytes(proxy) < full + 6 * MIB
    _, state = await proxy.admin("/api/state")
    assert state["tokens"]["prompt"] == 25_000 * 64
    for backend in state["backends"]:
        assert backend["load"] == {"requests": 0, "prefill_tokens": 0, "decodes": 0}
    assert state["index"]["bytes"] <= MIB
