"""Retries, breakers and health, as clients meet them."""

import asyncio

from conformance.raw_engine import STREAM_HEAD, Request, answer, event
from conformance.rig import StartRig, answer_ok, chat, post


async def test_request_on_a_dead_backend_is_retried_elsewhere(
    start_rig: StartRig,
) -> None:
    """A refused connection costs the client nothing."""
    rig = await start_rig(
        answer_ok, answer_ok, policy="round_robin", health={"interval_s": 60}
    )
    await rig.engines[0].stop()
    for _ in range(20):
        assert (await rig.request(post(chat()))).status == 200
    assert len(rig.engines[1].requests) == 20
    assert sum(rig.app.ledger.retries.values()) > 0


async def test_reset_before_the_first_byte_is_retried_once(start_rig: StartRig) -> None:
    """One retry elsewhere when nothing was received; a second loss is a 502."""

    async def reset(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    rig = await start_rig(reset, answer_ok, policy="round_robin")
    for _ in range(4):
        assert (await rig.request(post(chat()))).status == 200
    rig.engines[1].script = reset
    before = sum(len(engine.requests) for engine in rig.engines)
    replies = [await rig.request(post(chat())) for _ in range(2)]
    assert [reply.status for reply in replies] == [502, 502]
    assert replies[0].json()["error"]["code"] == "upstream_unreachable"
    sent = sum(len(engine.requests) for engine in rig.engines)
    assert sent <= before + 2 * 2


async def test_no_retry_after_the_first_byte(start_rig: StartRig) -> None:
    """A generation that began is never started twice."""

    async def cut(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + event("a"))
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.transport.abort()

    rig = await start_rig(cut, cut)
    await rig.request(post(chat(stream=True)))
    assert sum(len(engine.requests) for engine in rig.engines) == 1


async def test_no_retry_after_a_timeout(start_rig: StartRig) -> None:
    """A request that may be running is not sent again."""

    async def silent(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    rig = await start_rig(silent, silent, timeouts={"first_byte_s": 0.4})
    assert (await rig.request(post(chat()))).status == 504
    assert sum(len(engine.requests) for engine in rig.engines) == 1


async def test_stale_kept_connection_is_replaced(start_rig: StartRig) -> None:
    """An engine that closes kept connections loses no request, even when alone."""

    used: set[asyncio.StreamWriter] = set()

    async def close_after(request: Request, writer: asyncio.StreamWriter) -> None:
        if writer in used:
            # What a keep-alive timeout does to a request that crosses it.
            writer.transport.abort()
        else:
            used.add(writer)
            await answer_ok(request, writer)

    rig = await start_rig(close_after)
    for _ in range(5):
        assert (await rig.request(post(chat()))).status == 200
    assert rig.app.fleet.backends["b0"].breaker.state == "closed"


async def test_pooled_connection_is_used_again_but_not_after_2_s(
    start_rig: StartRig,
) -> None:
    """Kept connections are reused while they are younger than pool_idle_s."""
    rig = await start_rig(answer_ok, health={"interval_s": 60})
    for _ in range(3):
        await rig.request(post(chat()))
    pool = rig.app.port.pool(rig.app.fleet.backends["b0"])
    assert len(pool) == 1
    now = rig.app.port.clock()
    pool.sweep(now + 1.9)
    assert len(pool) == 1
    pool.sweep(now + 2.6)
    assert len(pool) == 0


async def test_client_errors_do_not_trip_the_breaker(start_rig: StartRig) -> None:
    """A hundred 4xx leave the backend in rotation."""

    async def refuse(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b"{}", "422 Unprocessable"))

    rig = await start_rig(refuse, answer_ok)
    for _ in range(100):
        await rig.request(post(chat()))
    assert rig.app.fleet.backends["b0"].breaker.state == "closed"
    assert len(rig.engines[0].requests) > 20


async def test_server_errors_open_the_breaker_and_a_trial_closes_it(
    start_rig: StartRig,
) -> None:
    """A failing backend leaves the rotation, and comes back by one good request."""

    async def fail(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b"{}", "500 Oops"))

    rig = await start_rig(
        fail,
        answer_ok,
        policy="round_robin",
        health={"interval_s": 60, "breaker": {"failures": 3, "open_s": 3600}},
    )
    statuses = [(await rig.request(post(chat()))).status for _ in range(20)]
    assert statuses.count(500) == 3
    rig.engines[0].script = answer_ok
    rig.clock.ahead_s += 2 * 3600
    assert [(await rig.request(post(chat()))).status for _ in range(6)] == [200] * 6
    assert rig.app.fleet.backends["b0"].breaker.state == "closed"


async def test_last_backend_is_never_opened(start_rig: StartRig) -> None:
    """With nowhere else to go, a failing backend still gets its requests."""

    async def fail(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b"{}", "500 Oops"))

    rig = await start_rig(fail, health={"breaker": {"failures": 2}})
    for _ in range(10):
        assert (await rig.request(post(chat()))).status == 500
    assert len(rig.engines[0].requests) == 10


async def test_progress_on_streams_is_health(start_rig: StartRig) -> None:
    """A backend whose probe fails while it streams stays in rotation."""
    go = asyncio.Event()

    async def stream(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        while not go.is_set():
            writer.write(event("a"))
            await writer.drain()
            await asyncio.sleep(0.02)
        writer.write(b"0\r\n\r\n")

    rig = await start_rig(stream, health={"interval_s": 0.2, "failures": 2})
    client = await rig.connect()
    await client.send(post(chat(stream=True)))
    await client.reader.readuntil(b"\n\n")
    rig.engines[0].healthy = False
    enough = rig.engines[0].health_checks + 6
    await rig.until(lambda: rig.engines[0].health_checks >= enough, "six bad probes")
    assert rig.app.fleet.backends["b0"].state == "up"
    go.set()
    await rig.released()


async def test_one_bad_backend_never_delays_the_start(start_rig: StartRig) -> None:
    """With one backend dead and one hanging, the third serves at once."""
    writers: list[asyncio.StreamWriter] = []
    hanging = await asyncio.start_server(
        lambda reader, writer: writers.append(writer), "127.0.0.1", 0
    )
    port = hanging.sockets[0].getsockname()[1]
    rig = await start_rig(answer_ok)
    url = rig.engines[0].url
    second = await start_rig(
        backends=[
            {"name": "dead", "url": "http://127.0.0.1:9"},
            {"name": "hangs", "url": f"http://127.0.0.1:{port}"},
            {"name": "good", "url": url, "engine": "openai"},
        ]
    )
    await second.until(
        lambda: second.app.fleet.backends["good"].state == "up", "the good one up"
    )
    assert (await second.request(post(chat()))).status == 200
    hanging.close()
    for writer in writers:
        writer.transport.abort()


async def test_no_backend_is_503_with_retry_after(start_rig: StartRig) -> None:
    """With every backend down, the answer says so and when to come back."""
    rig = await start_rig(answer_ok)
    await rig.engines[0].stop()
    await rig.until(lambda: rig.app.fleet.backends["b0"].state == "down", "down")
    reply = await rig.request(post(chat()))
    assert reply.status == 503
    assert reply.json()["error"]["code"] == "no_healthy_backend"
    assert reply.value("retry-after")
    assert (await rig.request(b"GET /readyz HTTP/1.1\r\nHost: p\r\n\r\n")).status == 503
    assert (await rig.request(b"GET /livez HTTP/1.1\r\nHost: p\r\n\r\n")).status == 200


async def test_models_are_the_union(start_rig: StartRig) -> None:
    """GET /v1/models lists what all backends serve, each model once."""
    rig = await start_rig(answer_ok, answer_ok)
    rig.engines[1].models = ["m", "n"]
    await rig.until(lambda: "n" in rig.app.fleet.backends["b1"].models, "n is known")
    reply = await rig.request(b"GET /v1/models HTTP/1.1\r\nHost: p\r\n\r\n")
    assert sorted(card["id"] for card in reply.json()["data"]) == ["m", "n"]
    reply = await rig.request(post(chat(model="n")))
    assert reply.status == 200
    assert len(rig.engines[1].requests) == 1
