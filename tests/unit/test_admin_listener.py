"""The admin port on the wire: what is not HTTP has an answer, too."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator

import pytest
from unit.test_admin import FakeApplication, make_state

from warmroute.proxy.admin import make_admin
from warmroute.proxy.admin.listener import AdminListener

Address = tuple[str, int]

LIVE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture
async def address() -> AsyncIterator[Address]:
    listener = AdminListener(make_admin(make_state(FakeApplication())), 1.0)
    yield await listener.start("127.0.0.1", 0)
    await listener.close()


async def ask(address: Address, request: bytes) -> tuple[bytes, bytes]:
    """Return head and body of the answer; the server must close."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return head, body


async def test_serves_the_application(address: Address) -> None:
    """As any aiohttp server would."""
    head, body = await ask(address, LIVE)
    assert head.startswith(b"HTTP/1.1 200 ")
    assert json.loads(body) == {"alive": True}


@pytest.mark.parametrize(
    ("request_bytes", "fault"),
    [
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", "8,190"),
        (b"GET / HTTP/1.1\r\nHost: l\r\nA: " + b"a" * 9000 + b"\r\n\r\n", "8,190"),
        (b"GET / HTTP/1.1\r\nHost: l\r\nno colon\r\n\r\n", "HTTP/1.1"),
        (b"secret nonsense\r\n\r\n", "HTTP/1.1"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "HTTP/1.1"),
    ],
)
async def test_what_cannot_be_parsed_is_400_in_the_one_shape(
    address: Address,
    caplog: pytest.LogCaptureFixture,
    request_bytes: bytes,
    fault: str,
) -> None:
    """Nothing of it is echoed, and the log has neither error nor traceback."""
    caplog.set_level(logging.INFO)
    head, body = await ask(address, request_bytes)
    assert head.split()[1] == b"400"
    assert b"\r\nServer: warmroute\r\n" in head
    assert b"application/json" in head
    error = json.loads(body)["error"]
    assert (error["code"], error["type"]) == ("bad_request", "invalid_request_error")
    assert fault in error["message"]
    assert b"secret" not in body
    assert [record.getMessage() for record in caplog.records] == []


POST = b"POST /api/explain HTTP/1.1\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize("host", [b"localhost", b"another.example"])
async def test_a_packed_body_is_refused_and_not_unpacked(
    address: Address, caplog: pytest.LogCaptureFixture, host: bytes
) -> None:
    """A broken one is no fault of ours, and leaves no traceback, whoever sends it."""
    request = POST + b"Host: %b\r\nContent-Encoding: gzip\r\n" % host
    request += b"Connection: close\r\nContent-Length: 3\r\n\r\nabc"
    _, body = await ask(address, request)
    code = "body_packed" if host == b"localhost" else "host_not_allowed"
    assert json.loads(body)["error"]["code"] == code
    assert [record for record in caplog.records if record.exc_info] == []


async def test_a_client_that_leaves_in_a_body_leaves_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing of ours has failed."""
    listener = AdminListener(make_admin(make_state(FakeApplication())), 1.0)
    address = await listener.start("127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*address)
    writer.write(POST + b"Host: localhost\r\nContent-Length: 30\r\n\r\nabc")
    await ask(address, LIVE)
    writer.close()
    await writer.wait_closed()
    await ask(address, LIVE)
    await listener.close()
    assert [record for record in caplog.records if record.exc_info] == []
