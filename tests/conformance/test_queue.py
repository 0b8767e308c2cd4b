"""Requests for a busy backend wait in the router, the shorter first."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from conformance.raw_engine import STREAM_HEAD, Request, answer, event
from conformance.rig import Client, Rig, StartRig, post

from warmroute.proxy.queue import HoldQueue

QUEUE = {"order": "shortest_uncached", "busy_s": 0.001, "max_wait_s": 60}


def policy(**changes: Any) -> dict[str, Any]:
    return {"name": "expected_ttft", "queue": {**QUEUE, **changes}}


class Gate:
    """An engine's script: a request waits until its first token is allowed."""

    def __init__(self) -> None:
        self.permits = asyncio.Semaphore(0)

    async def __call__(self, request: Request, writer: asyncio.StreamWriter) -> None:
        await self.permits.acquire()
        writer.write(STREAM_HEAD + event("a") + b"0\r\n\r\n")

    def allow(self, count: int = 1) -> None:
        for _ in range(count):
            self.permits.release()


async def send(rig: Rig, name: str, num_tokens: int) -> Client:
    """Send a prompt of token ids on a connection of its own."""
    client = await rig.connect()
    prompt = [hash_of(name) + at for at in range(num_tokens)]
    body = {"model": "m", "prompt": prompt, "stream": True}
    await client.send(post(body, "/v1/completions", f"x-request-id: {name}\r\n"))
    return client


def hash_of(name: str) -> int:
    return sum(map(ord, name)) * 10_000


def queue_of(rig: Rig) -> HoldQueue:
    queue = rig.app.port.queue
    assert queue is not None
    return queue


async def held(rig: Rig, count: int) -> None:
    await rig.until(lambda: len(queue_of(rig)) == count, f"{count} held")


def arrived(rig: Rig, engine: int = 0) -> list[str]:
    return [one.values("x-request-id")[0] for one in rig.engines[engine].requests]


def unsent(rig: Rig, name: str) -> tuple[int, str]:
    """Return how a request ended that no backend was chosen for."""
    decision = rig.app.ledger.find(name)
    assert decision is not None
    record = decision.record()
    outcome = record["outcome"]
    assert record["chosen"] is None
    assert outcome["predicted_tokens"] == 0
    assert outcome["duration_s"] > 0
    return outcome["status"], outcome["error"]


async def test_the_shorter_prompt_goes_first(start_rig: StartRig) -> None:
    """And a request that finds room does not wait at all."""
    gate = Gate()
    rig = await start_rig(gate, policy=policy())
    clients = [await send(rig, "first", 2000)]
    await rig.engines[0].wait_for(1)
    for at, (name, size) in enumerate((("long", 3000), ("short", 500)), 1):
        clients.append(await send(rig, name, size))
        await held(rig, at)
    assert arrived(rig) == ["first"]
    facts = queue_of(rig).facts()
    assert facts["backends"] == {"b0": {"requests": 2, "tokens": 3500}}
    assert 0 < facts["oldest_s"] < 60
    assert rig.app.fleet.backends["b0"].candidate.held_tokens == 3500
    gate.allow()
    await rig.engines[0].wait_for(2)
    assert arrived(rig) == ["first", "short"]
    gate.allow(2)
    for client in clients:
        assert (await client.receive()).status == 200
    assert arrived(rig) == ["first", "short", "long"]
    await rig.released()
    candidate = rig.app.fleet.backends["b0"].candidate
    assert (candidate.held_tokens, candidate.queued_tokens) == (0, 0)
    first, short = (rig.app.ledger.find(name) for name in ("first", "short"))
    assert first is not None
    assert "queued_s" not in first.record()
    assert short is not None
    assert 0 < short.record()["queued_s"] < short.record()["outcome"]["ttft_s"]
    assert queue_of(rig).outcomes["sent"] == queue_of(rig).waits.count == 2


async def test_order_of_arrival_can_be_kept(start_rig: StartRig) -> None:
    gate = Gate()
    rig = await start_rig(gate, policy=policy(order="arrival"))
    clients = [await send(rig, "first", 2000)]
    await rig.engines[0].wait_for(1)
    for at, (name, size) in enumerate((("long", 3000), ("short", 500)), 1):
        clients.append(await send(rig, name, size))
        await held(rig, at)
    gate.allow(3)
    for client in clients:
        assert (await client.receive()).status == 200
    assert arrived(rig) == ["first", "long", "short"]


async def test_a_client_that_leaves_is_never_sent(start_rig: StartRig) -> None:
    gate = Gate()
    rig = await start_rig(gate, policy=policy())
    first = await send(rig, "first", 2000)
    await rig.engines[0].wait_for(1)
    gone = await send(rig, "gone", 500)
    await held(rig, 1)
    gone.close()
    await held(rig, 0)
    assert rig.app.fleet.backends["b0"].candidate.held_tokens == 0
    gate.allow()
    assert (await first.receive()).status == 200
    await rig.released()
    assert arrived(rig) == ["first"]
    assert queue_of(rig).outcomes["left"] == 1
    assert rig.app.ledger.rejections == {"client_gone": 1}
    assert unsent(rig, "gone") == (499, "client_gone")


async def test_a_full_queue_refuses_with_a_time_to_come_back(
    start_rig: StartRig,
) -> None:
    rig = await start_rig(Gate(), policy=policy(max_requests=1))
    await send(rig, "first", 16_000)
    await rig.engines[0].wait_for(1)
    await send(rig, "held", 16_000)
    await held(rig, 1)
    reply = await (await send(rig, "refused", 100)).receive()
    assert reply.status == 429
    assert reply.json()["error"]["code"] == "queue_full"
    assert reply.json()["error"]["type"] == "rate_limit_error"
    assert 2 <= int(reply.value("retry-after") or 0) <= 60
    assert rig.app.ledger.rejections == {"queue_full": 1}
    assert unsent(rig, "refused") == (429, "queue_full")
    assert arrived(rig) == ["first"]


async def test_a_request_does_not_wait_for_ever(start_rig: StartRig) -> None:
    rig = await start_rig(Gate(), policy=policy(max_wait_s=0.05))
    await send(rig, "first", 2000)
    await rig.engines[0].wait_for(1)
    client = await send(rig, "late", 500)
    reply = await client.receive()
    assert (reply.status, reply.json()["error"]["code"]) == (429, "queue_timeout")
    assert reply.value("retry-after") is not None
    assert len(queue_of(rig)) == 0
    assert unsent(rig, "late") == (429, "queue_timeout")
    await client.send(b"GET /livez HTTP/1.1\r\nHost: p\r\n\r\n")
    assert (await client.receive()).status == 200


@pytest.mark.parametrize("end", ["removed", "drained", "dead"])
async def test_what_waits_for_a_backend_that_goes_is_decided_anew(
    end: str, start_rig: StartRig
) -> None:
    gates = [Gate(), Gate()]
    rig = await start_rig(*gates, policy=policy())
    await asyncio.gather(*[send(rig, name, 4000) for name in ("one", "two")])
    for engine in rig.engines:
        await engine.wait_for(1)
    waiting = [await send(rig, f"w{at}", 3000) for at in range(4)]
    await held(rig, 4)
    assert set(queue_of(rig).facts()["backends"]) == {"b0", "b1"}
    if end == "removed":
        await rig.app.fleet.remove("b0")
    elif end == "drained":
        rig.app.fleet.drain("b0")
    else:
        await rig.engines[0].stop()
    await rig.until(lambda: set(queue_of(rig).facts()["backends"]) == {"b1"}, "moved")
    gates[1].allow(20)
    for client in waiting:
        assert (await client.receive()).status == 200
    assert set(arrived(rig, 0)) <= {"one", "two"}


async def test_what_waits_stays_where_it_was_to_go(start_rig: StartRig) -> None:
    """Its backend was chosen when it came; an idle one beside it changes nothing."""
    gates = [Gate(), Gate()]
    rig = await start_rig(*gates, policy=policy())
    clients = [await send(rig, name, 4000) for name in ("one", "two")]
    for engine in rig.engines:
        await engine.wait_for(1)
    clients += [await send(rig, f"w{at}", 3000) for at in range(4)]
    await held(rig, 4)
    gates[1].allow(20)
    await rig.engines[1].wait_for(3)
    await rig.until(lambda: len(queue_of(rig)) == 2, "one line is empty")
    assert len(arrived(rig, 0)) == 1
    gates[0].allow(20)
    for client in clients:
        assert (await client.receive()).status == 200
    assert (len(arrived(rig, 0)), len(arrived(rig, 1))) == (3, 3)
    waited = [f"w{at}" for at in range(4)]
    assert sorted(arrived(rig, 0)[1:] + arrived(rig, 1)[1:]) == waited
    for name in waited:
        decision = rig.app.ledger.find(name)
        assert decision is not None
        priced = decision.record()["candidates"]
        assert all(one["cost"]["total_s"] > 0 for one in priced)


async def test_a_backend_that_comes_gets_of_what_waits(start_rig: StartRig) -> None:
    """The head of each line is chosen for anew when the fleet is another."""
    gates = [Gate(), Gate()]
    rig = await start_rig(*gates, policy=policy())
    rig.app.fleet.drain("b1")
    clients = [await send(rig, "first", 4000)]
    await rig.engines[0].wait_for(1)
    clients += [await send(rig, f"w{at}", 3000) for at in range(3)]
    await held(rig, 3)
    await rig.app.fleet.replace(rig.app.fleet.backends["b1"].config)
    await rig.all_up()
    gates[0].allow(1)
    await rig.until(lambda: len(arrived(rig, 1)) >= 1, "it got one")
    gates[0].allow(20)
    gates[1].allow(20)
    for client in clients:
        assert (await client.receive()).status == 200


async def test_without_any_backend_left_it_is_told_at_once(
    start_rig: StartRig,
) -> None:
    rig = await start_rig(Gate(), policy=policy())
    await send(rig, "first", 2000)
    await rig.engines[0].wait_for(1)
    client = await send(rig, "held", 500)
    await held(rig, 1)
    rig.app.fleet.drain("b0")
    reply = await client.receive()
    assert (reply.status, reply.json()["error"]["code"]) == (503, "no_healthy_backend")
    assert queue_of(rig).outcomes["failed"] == 1
    assert unsent(rig, "held") == (503, "no_healthy_backend")


async def test_the_end_of_the_process_is_told_to_those_who_wait(
    start_rig: StartRig,
) -> None:
    rig = await start_rig(Gate(), policy=policy())
    await send(rig, "first", 2000)
    await rig.engines[0].wait_for(1)
    client = await send(rig, "held", 500)
    await held(rig, 1)
    rig.app.port.close()
    reply = await client.receive()
    assert (reply.status, reply.json()["error"]["code"]) == (503, "draining")
    assert unsent(rig, "held") == (503, "draining")


async def test_a_refusal_is_in_the_access_records_and_in_no_backend_s_counts(
    start_rig: StartRig, tmp_path: Path
) -> None:
    path = tmp_path / "access.jsonl"
    rig = await start_rig(Gate(), policy=policy(max_wait_s=0.05), records=str(path))
    await send(rig, "first", 2000)
    await rig.engines[0].wait_for(1)
    assert (await (await send(rig, "late", 700)).receive()).status == 429
    await rig.until(lambda: b"late" in path.read_bytes(), "written")
    line = json.loads(path.read_text())
    assert (line["chosen"], line["status"], line["ttft_s"]) == (None, 429, None)
    assert (line["input_length"], len(line["blocks"])) == (700, 1)
    assert [flow.in_flight for flow in rig.app.ledger.flows()] == [1]
    assert sum(rig.app.ledger.choices.values()) == 1


async def test_a_queue_that_is_switched_off_lets_everything_go(
    start_rig: StartRig,
) -> None:
    async def ok(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.values("x-request-id") != ["first"]:
            writer.write(answer(b"{}"))
        else:
            await asyncio.Event().wait()

    rig = await start_rig(ok, policy=policy())
    await send(rig, "first", 2000)
    await rig.engines[0].wait_for(1)
    clients = [await send(rig, f"w{at}", 500) for at in range(3)]
    await held(rig, 3)
    config = rig.app.config
    off = config.policy.model_copy(update={"queue": None})
    rig.app.deciding.prepare(off)()
    for client in clients:
        assert (await client.receive()).status == 200
    assert rig.app.port.queue is None
    assert rig.app.router.policy.name == "expected_ttft"


async def test_what_needs_no_prefill_does_not_wait(start_rig: StartRig) -> None:
    """A path without a prompt has nothing to wait for."""

    async def first_waits(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.values("x-request-id") == ["first"]:
            await asyncio.Event().wait()
        writer.write(answer(b"{}"))

    rig = await start_rig(first_waits, policy=policy())
    await send(rig, "first", 2000)
    await rig.engines[0].wait_for(1)
    reply = await rig.request(b"GET /anything HTTP/1.1\r\nHost: p\r\n\r\n")
    assert reply.status == 200
