"""Fakes around the two connections of the data port: no sockets, no clock."""

import asyncio
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

from hypothesis import strategies as st

from warmroute.policies.errors import ClientError
from warmroute.proxy.http.head import RequestHead
from warmroute.proxy.http.inbound import ClientConnection
from warmroute.proxy.http.outbound import Answer, UpstreamConnection
from warmroute.proxy.http.outbox import Outbox


class FakeTransport(asyncio.Transport):
    """Keep what was written, and whether reading is paused."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.paused = False
        self.closing = False
        self.aborted = False
        self.has_ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.9", 4711) if name == "peername" else default

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_ended = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def unheld() -> Outbox:
    """Make an outbox that sends at once."""
    return Outbox(lambda flush: flush())


class FakeLimits(NamedTuple):
    """Read limits, small enough to be met."""

    head_bytes: int = 65536
    headers: int = 100
    body_bytes: int = 1 << 20
    header_s: float = 10.0
    body_s: float = 30.0
    keep_alive_s: float = 75.0
    idle_s: float = 300.0
    buffered_bytes: int = 1 << 30


class FakeWork:
    """A request as the port got it; answered when the test says so."""

    def __init__(
        self, port: "FakePort", client: ClientConnection, head: RequestHead, body: bytes
    ) -> None:
        self.port = port
        self.client = client
        self.head = head
        self.body = body
        self.request_id = head.request_id
        self.calls: list[str] = []

    def begin(self) -> None:
        if self.port.answers_at_once:
            self.finish()
        else:
            self.port.waiting.append(self)

    def finish(self) -> None:
        self.client.finished(keep_alive=self.head.keeps_alive)

    def client_gone(self) -> None:
        self.calls.append("gone")

    def client_writable(self, writable: bool) -> None:
        self.calls.append(f"writable {writable}")

    def expired(self) -> None:
        self.calls.append("expired")

    def interrupted(self) -> None:
        self.calls.append("interrupted")


class FakePort:
    """A listener that notes requests and refusals in order."""

    def __init__(self, limits: FakeLimits, *, answers_at_once: bool = True) -> None:
        self.read_limits: Any = limits
        self.outbox = unheld()
        self.is_draining = False
        self.held_bytes = 0
        self.is_full = False
        self.answers_at_once = answers_at_once
        self.waiting: list[FakeWork] = []
        self.works: list[FakeWork] = []
        self.log: list[tuple[Any, ...]] = []

    def opened(self, connection: ClientConnection) -> bool:
        return not self.is_full

    def closed(self, connection: ClientConnection) -> None:
        self.log.append(("closed",))

    def refused(self, error: ClientError) -> None:
        self.log.append((error.status, error.code))

    def work(
        self, connection: ClientConnection, head: RequestHead, body: bytes
    ) -> FakeWork:
        work = FakeWork(self, connection, head, body)
        self.works.append(work)
        self.log.append(
            (
                *(head.method, head.target, head.path, head.version, body),
                *(tuple(head.passing), head.authorization, head.session),
                *(head.content_type, head.content_encoding, head.explains),
                *(head.keeps_alive, head.has_body, head.fields.get(b"host")),
            )
        )
        return work


class FakeClient:
    """A client's bytes on their way in; they wait while reading is paused."""

    def __init__(self, port: FakePort | None = None) -> None:
        self.port = FakePort(FakeLimits()) if port is None else port
        self.transport = FakeTransport()
        self.connection = ClientConnection(self.port)
        self.connection.connection_made(self.transport)
        self._segments: list[bytes] = []

    def send(self, *segments: bytes) -> None:
        self._segments += segments
        self._deliver()

    def answer(self) -> None:
        """Finish the request that waits longest."""
        self.port.waiting.pop(0).finish()
        self._deliver()

    def answer_all(self) -> None:
        while self.port.waiting:
            self.answer()

    def _deliver(self) -> None:
        transport = self.transport
        while self._segments and not transport.paused and not transport.closing:
            self.connection.data_received(self._segments.pop(0))


class FakeReceiver:
    """An exchange and its sink in one: notes what an engine's answer brings."""

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.relayed = b""
        self.body_bytes = b""
        self.ends: list[str] = []

    def answer_started(self, answer: Answer) -> "FakeReceiver":
        assert self.answer is None
        self.answer = answer
        return self

    def body(self, piece: bytes) -> None:
        self.body_bytes += piece

    def data(self, data: bytes) -> None:
        assert not self.ends
        self.relayed += data

    def answer_ended(self) -> None:
        self.ends.append("ended")

    def answer_lost(self, reason: str) -> None:
        self.ends.append(f"lost: {reason}")


def upstream() -> tuple[UpstreamConnection, FakeTransport]:
    """Make a connection to an engine that is only bytes."""
    connection, transport = UpstreamConnection(unheld()), FakeTransport()
    connection.connection_made(transport)
    return connection, transport


def receive(
    segments: Iterable[bytes], *, bodiless: bool = False, eof: bool = False
) -> tuple[FakeReceiver, UpstreamConnection]:
    """Send one request, and let the engine answer with *segments*."""
    connection, transport = upstream()
    receiver = FakeReceiver()
    connection.send(receiver, b"GET / HTTP/1.1\r\n\r\n", b"", bodiless=bodiless)
    for segment in segments:
        if not transport.closing:
            connection.data_received(segment)
    if eof and not transport.closing:
        connection.eof_received()
        connection.connection_lost(None)
    return receiver, connection


def cut(data: bytes, at: Iterable[int]) -> list[bytes]:
    """Cut *data* at the given places, in any order and of any size."""
    places = sorted({place % (len(data) + 1) for place in at} - {0, len(data)})
    edges = [0, *places, len(data)]
    return [data[a:b] for a, b in pairwise(edges) if a < b]


def single(data: bytes) -> list[bytes]:
    """Cut *data* into bytes."""
    return [data[at : at + 1] for at in range(len(data))]


CUTS = st.one_of(
    st.lists(st.integers(0, 5000), max_size=8),
    st.just(range(5000)),
)
"""Where to cut a stream: nowhere, in a few places, everywhere."""
