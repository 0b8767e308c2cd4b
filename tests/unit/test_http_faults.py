"""A fault of the proxy's own ends a client's connection; nobody is left to wait."""

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
import pytest
import uvloop
from unit.fake_http import FakeClient, FakeLimits, FakePort, FakeWork

from warmroute.proxy.http import request_reader
from warmroute.proxy.http.inbound import ClientConnection

GET = b"GET /v1/x HTTP/1.1\r\nHost: h\r\n\r\n"
POST = b"POST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"


class BrokenWork(FakeWork):
    """Work with a fault that shows as it begins."""

    def begin(self) -> None:
        raise ZeroDivisionError


class BrokenPort(FakePort):
    """A port with a fault: in its work for POST, in itself for anything else."""

    num_sound = 0
    """So many requests show no fault yet."""

    def work(self, *request: Any) -> FakeWork:
        if len(self.works) < self.num_sound:
            return super().work(*request)
        work = BrokenWork(self, *request)
        if work.head.method != b"POST":
            raise ZeroDivisionError
        self.works.append(work)
        return work


async def ask(port: FakePort, *segments: bytes) -> list[BaseException | None]:
    """Ask over a socket until the end comes; returns what the loop was told."""
    loop = asyncio.get_running_loop()
    faults: list[BaseException | None] = []
    loop.set_exception_handler(lambda _, told: faults.append(told.get("exception")))
    server = await loop.create_server(lambda: ClientConnection(port), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        async with asyncio.timeout(10):
            for segment in segments:
                writer.write(segment)
            while await reader.read(100):
                pass
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()
        server.close()
    return faults


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize(("request_", "calls"), [(GET, []), (POST, [["gone"]])])
def test_fault_of_ours_ends_the_connection_and_the_work(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    request_: bytes,
    calls: list[list[str]],
) -> None:
    """The loop reports it; the client is not left to wait, the port forgets it."""
    port = BrokenPort(FakeLimits())
    with asyncio.Runner(loop_factory=new_loop) as runner:
        faults = runner.run(ask(port, request_))
    assert [type(fault) for fault in faults] == [ZeroDivisionError]
    assert [work.calls for work in port.works] == calls
    assert port.log == [("closed",)]


def test_fault_on_a_known_head_is_not_kept_from_the_loop() -> None:
    """The short way past the parser ends the same."""
    port = BrokenPort(FakeLimits())
    port.num_sound = 1
    one = FakeClient(port)
    one.send(POST)
    with pytest.raises(ZeroDivisionError):
        one.send(POST)
    one.connection.connection_lost(None)
    assert port.works[-1].calls == ["gone"]
    assert port.works[-1].head is port.works[0].head


@pytest.mark.parametrize("request_", [GET, POST])
def test_fault_behind_an_answer_ends_the_connection_too(request_: bytes) -> None:
    """There it shows in the call of the engine's connection, which is another."""
    port = BrokenPort(FakeLimits(), answers_at_once=False)
    port.num_sound = 1
    one = FakeClient(port)
    one.send(GET + request_)
    with pytest.raises(ZeroDivisionError):
        one.answer()
    assert one.transport.aborted


@pytest.mark.pure
def test_fault_while_a_head_is_read_is_not_blamed_on_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A 400 would hide it."""
    monkeypatch.setattr(request_reader, "RequestHead", None)
    one = FakeClient()
    with pytest.raises(httptools.HttpParserCallbackError) as caught:
        one.send(GET)
    assert isinstance(caught.value.__context__, TypeError)
    assert one.port.log == []
