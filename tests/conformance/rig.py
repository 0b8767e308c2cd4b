"""A whole warmroute in this process, in front of scripted engines, and a client."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from conformance.raw_engine import RawEngine, Request, answer

from warmroute.proxy.app import App

# When a wait is given up, which only a fault should bring about.
PATIENCE_S = 60.0


@dataclass
class Reply:
    """One answer as a client received it."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def value(self, name: str) -> str | None:
        return next((v for k, v in self.headers if k.lower() == name.lower()), None)

    def values(self, name: str) -> list[str]:
        return [v for k, v in self.headers if k.lower() == name.lower()]

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """A client over a raw socket, so that every byte is the test's."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def receive(self, *, bodiless: bool = False) -> Reply:
        """Read one answer: by length, by chunks (decoded), or to the close."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        pairs = [line.split(":", 1) for line in lines]
        headers = [(name, value.strip()) for name, value in pairs]
        reply = Reply(int(first.split(" ")[1]), headers, b"")
        if bodiless or reply.status in (100, 204, 304):
            return reply
        if (length := reply.value("content-length")) is not None:
            reply.body = await self.reader.readexactly(int(length))
        elif reply.value("transfer-encoding") == "chunked":
            reply.body = await self._chunks()
        else:
            reply.body = await self.reader.read()
        return reply

    async def _chunks(self) -> bytes:
        body = b""
        while True:
            size = int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16)
            body += (await self.reader.readexactly(size + 2))[:-2]
            if size == 0:
                return body

    async def is_closed(self) -> bool:
        """Read to the end; True when the proxy closed the connection."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.writer.transport.abort()


def post(
    body: bytes | dict[str, Any], path: str = "/v1/chat/completions", extra: str = ""
) -> bytes:
    """Render a POST with a JSON body."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (
        f"POST {path} HTTP/1.1\r\nHost: proxy\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n{extra}\r\n"
    ).encode() + data


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """Make the body of a small chat completion."""
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


class ForwardClock:
    """The monotonic clock, put forward by as much as a test says."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


class Rig:
    """A running proxy and the engines behind it."""

    def __init__(self, app: App, engines: list[RawEngine], clock: ForwardClock) -> None:
        self.app = app
        self.engines = engines
        self.clock = clock
        self.clients: list[Client] = []

    @property
    def port(self) -> int:
        assert self.app.listening is not None
        return self.app.listening[1]

    async def connect(self) -> Client:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, limit=1 << 26
        )
        self.clients.append(Client(reader, writer))
        return self.clients[-1]

    async def request(self, data: bytes) -> Reply:
        """Send one request on a connection of its own."""
        client = await self.connect()
        await client.send(data)
        return await client.receive()

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until *holds*; state has no event, so look at it often."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds():  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
        except TimeoutError:
            pytest.fail(f"still not after {PATIENCE_S:.0f} s: {what}")

    async def later(self, seconds: float) -> None:
        """Put the clock forward, and wait until all deadlines were looked at."""
        self.clock.ahead_s += seconds
        before = self.app.port._sweeper
        await self.until(lambda: self.app.port._sweeper is not before, "a sweep")

    async def all_up(self) -> None:
        backends = self.app.fleet.backends
        await self.until(
            lambda: all(one.state == "up" for one in backends.values()), "all up"
        )

    def load(self) -> int:
        """Count the requests that are still on the books of any backend."""
        backends = self.app.fleet.backends.values()
        return sum(
            one.candidate.requests
            + one.candidate.prefill_tokens
            + one.candidate.context_tokens
            for one in backends
        )

    async def released(self) -> None:
        await self.until(lambda: self.load() == 0, "all load released")

    async def close(self) -> None:
        for client in self.clients:
            client.close()
        await self.app.close()
        for engine in self.engines:
            await engine.stop()


async def answer_ok(request: Request, writer: Any) -> None:
    """Answer any request with a small chat completion."""
    writer.write(
        answer(b'{"id":"x","usage":{"prompt_tokens":9,"completion_tokens":1}}')
    )


StartRig = Callable[..., Awaitable[Rig]]
