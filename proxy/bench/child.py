"""The processes of the relay measurement; run as ``python -m``, one role each.

Prints its port, then its CPU seconds for each line that it reads, until the end of
its input: so it never outlives who started it.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Final

from warmroute.proxy.process import find_loop

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_READY_S: Final = 20.0


class CannedEngine(asyncio.Protocol):
    """Answer each request at once with a small chat completion."""

    def __init__(self) -> None:
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Answer what is complete."""
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end]
            length = _LENGTH.search(head)
            end += 4 + (int(length[1]) if length else 0)
            if len(self._received) < end:
                return
            self._received = self._received[end:]
            self._transport.write(_answer(head))


def _answer(head: bytes) -> bytes:
    if head.startswith(b"GET /v1/models"):
        body: object = {"object": "list", "data": [{"id": "m", "object": "model"}]}
    elif head.startswith(b"GET /health"):
        body = {}
    elif head.startswith(b"GET"):
        return b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
    else:
        usage = {"prompt_tokens": 250, "completion_tokens": 1}
        body = {"id": "x", "object": "chat.completion", "choices": [], "usage": usage}
    data = json.dumps(body).encode()
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(data), data)
    )


class BareRelay(asyncio.Protocol):
    """Pass bytes between a client and the engine, and look at none of them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._early = b""
        self._engine: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open the engine's side."""
        self._client: asyncio.Transport = transport  # type: ignore[assignment]
        self._opening = asyncio.ensure_future(self._open())

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        self._engine, _ = await loop.create_connection(
            lambda: _Back(self._client), "127.0.0.1", self._port
        )
        self._engine.write(self._early)

    def data_received(self, data: bytes) -> None:
        """Pass on to the engine."""
        if self._engine is None:
            self._early += data
        else:
            self._engine.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the engine's side."""
        if self._engine is not None:
            self._engine.close()


class _Back(asyncio.Protocol):
    def __init__(self, client: asyncio.Transport) -> None:
        self.data_received = client.write  # type: ignore[method-assign]


async def _listen(protocol: Callable[[], asyncio.Protocol]) -> int:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(protocol, "127.0.0.1", 0)
    return int(server.sockets[0].getsockname()[1])


async def _engine(port: int) -> int:
    return await _listen(CannedEngine)


async def _relay(port: int) -> int:
    return await _listen(lambda: BareRelay(port))


async def _warmroute(port: int) -> int:
    from warmroute.proxy.app import App
    from warmroute.proxy.config import Config

    url = f"http://127.0.0.1:{port}"
    backend = {"name": "engine", "url": url, "engine": "openai"}
    settings = {"listen": "127.0.0.1:0", "admin": "off", "backends": [backend]}
    config = Config.model_validate(settings)
    app = App(config, lambda: config)
    await app.start()
    async with asyncio.timeout(_READY_S):
        while not app.fleet.is_ready:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert app.listening is not None
    return app.listening[1]


ROLES: Final[dict[str, Callable[[int], Awaitable[int]]]] = {
    "engine": _engine,
    "relay": _relay,
    "warmroute": _warmroute,
}


async def _serve(role: str, port: int) -> None:
    own_port = await ROLES[role](port)
    sys.stdout.write(f"{own_port}\n")
    sys.stdout.flush()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while await reader.readline():
        sys.stdout.write(f"{time.process_time()}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=find_loop()) as runner:
        runner.run(_serve(sys.argv[1], int(sys.argv[2])))
