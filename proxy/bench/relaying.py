"""The CPU of a proxied request, against a relay that only passes bytes on."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass
from typing import Final

from warmroute.proxy.bench.errors import BenchError

_CONNECTIONS: Final = 8
_REQUESTS: Final = 1600
_WARM_UP: Final = 400
_PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class RelayCost:
    """What a request of 1 KB takes on kept connections.

    Attributes:
        us: Microseconds of CPU in warmroute.
        relay_us: In a relay of the same event loop that reads nothing.
    """

    us: float
    relay_us: float


class Server:
    """A child process with one role of the measurement."""

    __slots__ = ("_process", "port", "role")

    def __init__(self, role: str) -> None:
        self.role = role
        self.port = 0
        self._process: Process | None = None

    def __repr__(self) -> str:
        return f"<Server {self.role} port={self.port}>"

    async def start(self, port: int) -> None:
        """Start it in front of the engine on *port*.

        Raises:
            BenchError: It did not come up.
        """
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "warmroute.proxy.bench.child", self.role),
            str(port),
            stdin=PIPE,
            stdout=PIPE,
        )
        self.port = int(await self._read())

    async def cpu_s(self) -> float:
        """Return the CPU seconds that it has used."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        return float(await self._read())

    async def stop(self) -> None:
        """End it."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _read(self) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                line = await self._process.stdout.readline()
        except TimeoutError:
            line = b""
        if not line:
            raise BenchError(
                f"the {self.role} of the measurement did not answer within "
                f"{_PATIENCE_S:.0f} s; its errors are above"
            )
        return line


async def relay_cost(reps: int) -> RelayCost:
    """Measure both in turn, *reps* times, and take the best of each.

    Raises:
        BenchError: A child process failed.
    """
    engine, relay, proxy = Server("engine"), Server("relay"), Server("warmroute")
    try:
        await engine.start(0)
        await relay.start(engine.port)
        await proxy.start(engine.port)
        best = {relay: float("inf"), proxy: float("inf")}
        for server in best:
            await _play(server.port, _WARM_UP)
        for _ in range(reps):
            for server in best:
                before = await server.cpu_s()
                await _play(server.port, _REQUESTS)
                us = 1e6 * (await server.cpu_s() - before) / _REQUESTS
                best[server] = min(best[server], us)
        return RelayCost(best[proxy], best[relay])
    finally:
        for server in (proxy, relay, engine):
            await server.stop()


async def _play(port: int, requests: int) -> None:
    """Send requests over kept connections, one at a time on each."""
    each = requests // _CONNECTIONS
    await asyncio.gather(*[_talk(port, each) for _ in range(_CONNECTIONS)])


async def _talk(port: int, requests: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    messages = [{"role": "user", "content": "word " * 200}]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    data = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        % (len(body), body)
    )
    try:
        for _ in range(requests):
            writer.write(data)
            head = await reader.readuntil(b"\r\n\r\n")
            status, length = head.split(b" ", 2)[1], _length(head)
            if status != b"200":
                raise BenchError(f"the measurement was answered {status.decode()}")
            await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise BenchError(f"the measurement lost its connection: {error!r}") from error
    finally:
        writer.transport.abort()


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line[15:])
    return 0
