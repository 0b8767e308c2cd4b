"""A large body is read in a thread: others are served, and nothing else changes."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from conformance.rig import StartRig, answer_ok, chat, post

from warmroute.proxy import body_wait
from warmroute.proxy.body_wait import LARGE_BYTES, LargeBodies
from warmroute.proxy.http.head import RequestHead
from warmroute.proxy.prompt import PromptReader

LARGE = chat("word " * (LARGE_BYTES // 5 + 1))


class Gate:
    """Holds whoever reads a body until it is opened."""

    def __init__(self) -> None:
        self.parse = body_wait.parse
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, *args: Any) -> Any:
        self.entered.set()
        assert self.opened.wait(30)
        return self.parse(*args)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(body_wait, "parse", gate)
    yield gate
    gate.opened.set()


@pytest.mark.pure
async def test_others_are_served_while_it_is_read(
    start_rig: StartRig, gate: Gate
) -> None:
    """However long it takes; then it goes its way."""
    rig = await start_rig(answer_ok, policy="expected_ttft")
    client = await rig.connect()
    await client.send(post(LARGE))
    await rig.until(gate.entered.is_set, "it is being read")
    for _ in range(3):
        assert (await rig.request(post(chat()))).status == 200
    gate.opened.set()
    assert (await client.receive()).status == 200
    await client.send(post(chat()))
    assert (await client.receive()).status == 200
    decision = rig.app.ledger.find(rig.engines[0].requests[3].values("x-request-id")[0])
    assert decision is not None
    assert decision.grade == "estimated"
    await rig.released()


@pytest.mark.pure
async def test_a_client_that_leaves_meanwhile_is_not_waited_for(
    start_rig: StartRig, gate: Gate
) -> None:
    """Nothing reaches an engine, and nothing is left behind."""
    rig = await start_rig(answer_ok)
    client = await rig.connect()
    await client.send(post(LARGE))
    await rig.until(gate.entered.is_set, "it is being read")
    client.close()
    await rig.until(lambda: "client_gone" in rig.app.ledger.rejections, "noticed")
    gate.opened.set()
    assert (await rig.request(post(chat()))).status == 200
    assert len(rig.engines[0].requests) == 1
    assert rig.app.port.held_bytes == 0


async def test_refusals_stay_refusals(start_rig: StartRig) -> None:
    """An unknown model is 404 for a large body as well."""
    rig = await start_rig(answer_ok)
    client = await rig.connect()
    for _ in range(2):
        await client.send(post({**LARGE, "model": "nope"}))
        reply = await client.receive()
        assert reply.json()["error"]["code"] == "model_not_found"


BODIES = [
    (
        "/v1/chat/completions",
        b'{"model":"m","messages":[{"role":"user","content":"x"}]}',
    ),
    ("/v1/completions", b'{"model":"m","prompt":[1,2,3],"stream":true}'),
    ("/v1/completions", b'{"model":"m","prompt":["a","b"],"user":"u"}'),
    ("/v1/completions", b'{"model":"m","prompt":[-1]}'),
    ("/v1/messages", b'{"model":"m","system":"s","messages":[]}'),
    ("/v1/responses/resp_1/cancel", b"{}"),
    ("/v1/chat/completions", b'{"model":"m","messages":7}'),
    ("/v1/chat/completions", b"not json"),
    ("/v1/chat/completions", b""),
]


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_a_thread_reads_what_the_loop_reads(path: str, body: bytes) -> None:
    """The same prompt in every field."""
    pairs = [(b"host", b"p"), (b"content-type", b"application/json")]
    head = RequestHead(b"POST", path.encode(), "1.1", pairs)
    reader, bodies = PromptReader(), LargeBodies()
    expected = reader.read(path, head.content_type, b"", body)
    found = await bodies.read(reader, head, body)
    bodies.close()
    assert found == expected
