"""The books of load: reserved with the choice, released on every exit."""

import asyncio
from collections import Counter

from conformance.raw_engine import STREAM_HEAD, Request, answer, event
from conformance.rig import StartRig, answer_ok, chat, post


async def test_burst_spreads_over_all_backends(start_rig: StartRig) -> None:
    """Requests that arrive at once do not all see the same idle backend."""
    go = asyncio.Event()

    async def wait(request: Request, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        await answer_ok(request, writer)

    rig = await start_rig(wait, wait, wait, wait, policy="expected_ttft")
    clients = [await rig.connect() for _ in range(40)]
    for at, client in enumerate(clients):
        await client.send(post(chat(f"{at} " + "different words " * 40)))
    await rig.until(
        lambda: sum(len(engine.requests) for engine in rig.engines) == 40, "arrival"
    )
    counts = [len(engine.requests) for engine in rig.engines]
    assert max(counts) <= 2 * min(counts)
    go.set()
    for client in clients:
        assert (await client.receive()).status == 200
    await rig.released()


async def test_every_path_counts(start_rig: StartRig) -> None:
    """A path that nobody knows is on the books as much as a chat is."""
    go = asyncio.Event()

    async def wait(request: Request, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        await answer_ok(request, writer)

    rig = await start_rig(wait, wait)
    clients = [await rig.connect() for _ in range(6)]
    for client in clients:
        await client.send(b"GET /anything/else HTTP/1.1\r\nHost: p\r\n\r\n")
    await rig.until(
        lambda: sum(len(engine.requests) for engine in rig.engines) == 6, "arrival"
    )
    assert [len(engine.requests) for engine in rig.engines] == [3, 3]
    go.set()
    for client in clients:
        await client.receive()
    await rig.released()


async def test_load_is_released_after_every_kind_of_end(start_rig: StartRig) -> None:
    """Good, refused, broken, cut and cancelled requests all leave zero behind."""

    async def mixed(request: Request, writer: asyncio.StreamWriter) -> None:
        kind = request.values("x-kind")[0]
        if kind == "error":
            writer.write(answer(b"{}", "500 Oops"))
        elif kind == "refuse":
            writer.write(answer(b"{}", "400 Bad"))
        elif kind == "reset":
            writer.transport.abort()
        elif kind == "garbage":
            writer.write(b"hello\r\n\r\n")
        elif kind == "cut":
            writer.write(STREAM_HEAD + event("a"))
            await writer.drain()
            writer.transport.abort()
        else:
            await answer_ok(request, writer)

    rig = await start_rig(
        mixed, mixed, health={"interval_s": 0.2, "breaker": {"failures": 1000}}
    )
    for _ in range(5):
        for kind in ("good", "error", "refuse", "reset", "garbage", "cut"):
            reply = await rig.request(post(chat(), extra=f"x-kind: {kind}\r\n"))
            assert reply.status in (200, 400, 500, 502)
    await rig.released()
    assert all(flow.in_flight == 0 for flow in rig.app.ledger.flows())


async def test_probes_do_not_touch_load(start_rig: StartRig) -> None:
    """Probing goes on while a request runs, and its load stays as it is."""
    go = asyncio.Event()

    async def wait(request: Request, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        await answer_ok(request, writer)

    rig = await start_rig(wait, health={"interval_s": 0.05})
    client = await rig.connect()
    await client.send(post(chat("a prompt of some length")))
    await rig.engines[0].wait_for(1)
    before = rig.load()
    enough = rig.engines[0].health_checks + 5
    assert before > 0
    await rig.until(lambda: rig.engines[0].health_checks >= enough, "five probes")
    assert rig.load() == before
    go.set()
    await client.receive()


async def test_restarted_backend_starts_from_zero(start_rig: StartRig) -> None:
    """What was reserved on the old process neither stays nor goes negative."""

    async def silent(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    rig = await start_rig(silent, answer_ok)
    rig.app.fleet.drain("b1")
    client = await rig.connect()
    await client.send(post(chat(stream=True)))
    engine = rig.engines[0]
    await engine.wait_for(1)
    old = rig.app.fleet.backends["b0"].candidate
    incarnation = rig.app.fleet.backends["b0"].incarnation
    port = engine.port
    await engine.stop()
    await rig.until(lambda: rig.app.fleet.backends["b0"].state == "down", "down")
    engine.script = answer_ok
    await engine.start(port)
    await rig.until(lambda: rig.app.fleet.backends["b0"].state == "up", "up again")
    await rig.until(
        lambda: rig.app.fleet.backends["b0"].incarnation > incarnation, "incarnation"
    )
    assert rig.app.fleet.backends["b0"].candidate is not old
    assert rig.load() == 0


async def test_identical_prompts_follow_each_other(start_rig: StartRig) -> None:
    """The mirror sends a repeated long prompt where it was sent before."""
    rig = await start_rig(answer_ok, answer_ok, answer_ok, policy="expected_ttft")
    seen: Counter[str | None] = Counter()
    for _ in range(10):
        reply = await rig.request(
            post(
                chat("the same long prompt " * 400), extra="x-warmroute-explain: 1\r\n"
            )
        )
        seen[reply.value("x-warmroute-backend")] += 1
    assert len(seen) == 1
