"""The process ends as it was asked to: draining, hurrying, or not beginning at all."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from conformance.raw_engine import STREAM_HEAD, Request, event
from conformance.rig import chat, post
from integration import served
from integration.scripts import HeldStream, answer_ok, read_rest, read_until
from integration.served import Stage

stage = served.stage

STREAM = post(chat(stream=True))
BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


def children_of(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


@BOTH
async def test_accepts_for_the_delay(stage: Stage, number: signal.Signals) -> None:
    """Not ready at once, and open to those who have not heard of it yet."""
    script = HeldStream()
    drain = {"delay_s": 3600, "timeout_s": 3600}
    proxy = await stage.serve(await stage.engine(script), drain=drain)
    assert (await proxy.get("/readyz")).status == 200
    proxy.signal(number)
    await proxy.logged("drain_started")
    unready = await proxy.get("/readyz")
    assert (unready.status, unready.json()) == (503, {"status": "draining"})
    assert (await proxy.admin("/readyz"))[0] == 503
    assert (await proxy.get("/livez")).status == 200
    late = await proxy.connect()
    await late.send(STREAM)
    await read_until(late, b"first")
    script.released.set()
    rest = await read_until(late, b"0\r\n\r\n")
    assert b"last" in rest
    assert rest.endswith(b"[DONE]\n\n\r\n0\r\n\r\n")


@BOTH
async def test_lets_streams_end_after_the_delay(
    stage: Stage, number: signal.Signals
) -> None:
    """Deaf after the delay, gone with exit code 0 after the last stream."""
    script = HeldStream()
    drain = {"delay_s": 0.2, "timeout_s": 3600}
    proxy = await stage.serve(await stage.engine(script), drain=drain)
    running = await proxy.connect()
    await running.send(STREAM)
    await read_until(running, b"first")
    proxy.signal(number)
    await proxy.deaf()
    script.released.set()
    rest = await read_rest(running)
    assert b"last" in rest
    assert rest.endswith(b"[DONE]\n\n\r\n0\r\n\r\n")
    assert await proxy.ended() == 0
    assert proxy.stderr == ""


@BOTH
async def test_streams_that_outlast_the_drain_get_an_error_event(
    stage: Stage, number: signal.Signals
) -> None:
    """The client learns that the end came too early, and the exit code is still 0."""
    engine = await stage.engine(HeldStream())
    proxy = await stage.serve(engine, drain={"delay_s": 0, "timeout_s": 0.3})
    stream, whole = await proxy.connect(), await proxy.connect()
    await stream.send(STREAM)
    await whole.send(post(chat()))
    await read_until(stream, b"first")
    await engine.wait_for(2)
    proxy.signal(number)
    rest = await read_rest(stream)
    assert b'"code":"draining"' in rest
    assert b"[DONE]" not in rest
    refusal = await whole.receive()
    assert refusal.status == 503
    assert refusal.json()["error"]["code"] == "draining"
    assert await proxy.ended() == 0
    assert proxy.stderr == ""


@BOTH
@pytest.mark.parametrize("delay_s", [3600, 0], ids=["in the delay", "in the drain"])
async def test_a_second_signal_ends_at_once(
    stage: Stage, number: signal.Signals, delay_s: int
) -> None:
    """Whoever asks twice does not want to wait, wherever the drain is."""
    drain = {"delay_s": delay_s, "timeout_s": 3600}
    proxy = await stage.serve(await stage.engine(HeldStream()), drain=drain)
    client = await proxy.connect()
    await client.send(STREAM)
    await read_until(client, b"first")
    proxy.signal(number)
    await proxy.logged("drain_started")
    proxy.signal(number)
    assert await proxy.ended() == 0
    assert b'"code":"draining"' in await read_rest(client)
    assert proxy.stderr == ""


async def test_a_client_that_does_not_read_holds_nothing_up(stage: Stage) -> None:
    """Its last bytes are waited for, but not for long."""

    async def flood(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        while True:
            writer.write(event("x" * 60_000))
            await writer.drain()

    proxy = await stage.serve(
        await stage.engine(flood), drain={"delay_s": 0, "timeout_s": 0.2}
    )
    client = await proxy.connect()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await client.send(STREAM)
    backend = "/api/state"
    await proxy.until(backend, lambda s: s["backends"][0]["load"]["decodes"] == 1)
    proxy.signal(signal.SIGTERM)
    assert await proxy.ended() == 0
    assert proxy.stderr == ""


async def test_nothing_is_left(stage: Stage) -> None:
    """Idle connections do not delay the end, and no process or listener survives."""
    engine = await stage.engine(answer_ok)
    proxy = await stage.serve(engine, drain={"delay_s": 0, "timeout_s": 3600})
    idle = await proxy.connect()
    await idle.send(post(chat()))
    assert (await idle.receive()).status == 200
    await proxy.admin("/api/state")
    assert children_of(proxy.pid) == ""
    proxy.signal(signal.SIGTERM)
    assert await proxy.ended() == 0
    assert await idle.is_closed()
    with pytest.raises(ConnectionRefusedError):
        await proxy.connect()
    with pytest.raises(ProcessLookupError):
        os.kill(proxy.pid, 0)


@pytest.mark.parametrize("key", ["listen", "admin"])
async def test_a_taken_port_is_named(stage: Stage, key: str) -> None:
    """Exit code 1, one line that says which listener and why, no traceback."""
    engine = await stage.engine(answer_ok)
    taken = engine.url.removeprefix("http://")
    settings: dict[str, Any] = {key: taken}
    proxy = await stage.spawn(engine, **settings)
    assert await proxy.ended() == 1
    expected = f"warmroute: {key}: cannot listen on {taken}: address already in use; "
    assert proxy.stderr.startswith(expected)
    assert proxy.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"listn": ":1"}, "listn"),
        ({"policy": {"name": "expected_ttft", "nonsense": 1}}, "nonsense"),
        ({"backends": [{"url": "http://h", "engine": "vlm"}]}, "unknown engine 'vlm'"),
        ({"tls": {"certificate": __file__, "key": __file__}}, "tls"),
    ],
    ids=["key", "policy option", "engine", "certificate"],
)
async def test_a_wrong_configuration_is_refused(
    stage: Stage, settings: dict[str, Any], says: str
) -> None:
    """Exit code 2 and the place of the error, no traceback."""
    proxy = await stage.spawn(await stage.engine(answer_ok), **settings)
    assert await proxy.ended() == 2
    assert says in proxy.stderr
    assert "Traceback" not in proxy.stderr
    assert proxy.count("started") == 0
