"""A scripted engine over a real socket: every byte of its answers is the test's.

A fake: it computes nothing. Probes (health, models, metrics) get fitting answers by
themselves; everything else goes to the script of the test.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

Script = Callable[["Request", asyncio.StreamWriter], Awaitable[None]]

_PROBED = ("/health", "/v1/models", "/metrics", "/version", "/server_info")


@dataclass
class Request:
    """One request as the engine received it."""

    line: str
    head: bytes
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def path(self) -> str:
        return self.line.split(" ")[1]

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]


@dataclass
class RawEngine:
    """An engine on loopback that answers as its script says."""

    script: Script
    models: list[str] = field(default_factory=lambda: ["m"])
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    health_checks: int = 0
    port: int = 0

    def __post_init__(self) -> None:
        self.arrived = asyncio.Condition()
        self.disconnected = asyncio.Event()
        self.healthy = True
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> "RawEngine":
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", port, limit=1 << 26
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Vanish as a killed process does: listener and connections at once."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def wait_for(self, count: int) -> None:
        """Wait until *count* scripted requests have arrived."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.requests) >= count)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._writers.add(writer)
        self.connections += 1
        try:
            while (request := await _read(reader)) is not None:
                if request.line.startswith("GET ") and request.path in _PROBED:
                    self._answer_probe(request.path, writer)
                    continue
                self.requests.append(request)
                async with self.arrived:
                    self.arrived.notify_all()
                watch = asyncio.ensure_future(self._watch(reader))
                try:
                    await self.script(request, writer)
                finally:
                    watch.cancel()
                if writer.is_closing():
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            self.disconnected.set()
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        # A StreamReader tells its end to readers only, and nobody may read here.
        while not reader.at_eof() and reader.exception() is None:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        self.disconnected.set()

    def _answer_probe(self, path: str, writer: asyncio.StreamWriter) -> None:
        self.health_checks += path == "/health"
        if not self.healthy:
            writer.write(b"HTTP/1.1 503 Bad\r\ncontent-length: 0\r\n\r\n")
        elif path == "/v1/models":
            cards = [{"id": name, "object": "model"} for name in self.models]
            writer.write(answer(json.dumps({"object": "list", "data": cards}).encode()))
        elif path == "/health":
            writer.write(answer(b"{}"))
        else:
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    line, *lines = head.decode("latin-1").split("\r\n")[:-2]
    pairs = [text.partition(": ") for text in lines]
    headers = [(name, value) for name, _, value in pairs]
    length = next((int(v) for k, v in headers if k.lower() == "content-length"), 0)
    return Request(line, head, headers, await reader.readexactly(length))


def answer(
    body: bytes, status: str = "200 OK", kind: str = "application/json", extra: str = ""
) -> bytes:
    """Render a whole answer with a length."""
    return (
        f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n"
        f"content-length: {len(body)}\r\n{extra}\r\n"
    ).encode() + body


def chunk(data: bytes) -> bytes:
    """Frame *data* as one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(content: str) -> bytes:
    """Render a chat completion chunk as a framed SSE event."""
    delta = {"choices": [{"index": 0, "delta": {"content": content}}]}
    return chunk(b"data: " + json.dumps(delta).encode() + b"\n\n")


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
DONE = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
