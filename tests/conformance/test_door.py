"""The engines' own KV door stays shut to whoever reaches the data port only."""

import pytest
from conformance.rig import StartRig, answer_ok, chat, post

SPELLINGS = [
    "/warmroute/kv/flush",
    "/warmroute%2Fkv/flush",
    "//warmroute/kv/flush",
    "/x/../warmroute/kv/flush",
    "http://proxy/warmroute/kv/flush",
    "HTTP://proxy/%77armroute/kv/flush?x=1",
    "/WARMROUTE/kv/flush",
]


@pytest.mark.parametrize("target", SPELLINGS)
@pytest.mark.parametrize("method", ["POST", "GET", "HEAD"])
async def test_the_door_is_403_and_reaches_no_engine(
    target: str, method: str, start_rig: StartRig
) -> None:
    """However it is spelt; the answer names the way that is allowed."""
    rig = await start_rig(answer_ok)
    await rig.all_up()
    before = rig.app.ledger.rejections.get("forbidden_path", 0)
    data = post({}, target).replace(b"POST", method.encode(), 1)
    reply = await rig.request(data)
    assert reply.status == 403
    error = reply.json()["error"]
    assert error["code"] == "forbidden_path"
    assert "/api/kv/{verb}" in error["message"]
    assert not rig.engines[0].requests
    assert rig.app.ledger.rejections["forbidden_path"] == before + 1


async def test_a_recognised_head_does_not_open_it(start_rig: StartRig) -> None:
    """A connection whose last head is known judges another target anew."""
    rig = await start_rig(answer_ok)
    client = await rig.connect()
    for _ in range(3):
        await client.send(post(chat()))
        assert (await client.receive()).status == 200
    for target in ("/warmroute/kv/flush", "/v1/chat/completions"):
        await client.send(post(chat(), target))
    assert (await client.receive()).status == 403
    assert await client.is_closed()
    assert len(rig.engines[0].requests) == 3


async def test_a_model_may_have_the_name(start_rig: StartRig) -> None:
    """Only the first part of the path is reserved; all else passes as it came."""
    rig = await start_rig(answer_ok)
    target = "/v1/models/warmroute%2Fkv"
    assert (await rig.request(post(chat(), target))).status == 200
    assert rig.engines[0].requests[0].path == target
