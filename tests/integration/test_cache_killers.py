"""A seeded cache killer is found in the traffic of a running proxy, and told."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from conformance.rig import Client, Rig, StartRig, answer_ok, post
from unit.killer_traffic import Writer, chat, real_chats, time_of

from warmroute.proxy import killer_watch as watch_module
from warmroute.proxy.cli import main
from warmroute.proxy.doctor.cache_killers import CacheKillers

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at prompts as they come, so that no test waits."""
    monkeypatch.setattr(watch_module, "EVERY_S", 0.0)


async def send(client: Client, body: dict[str, Any]) -> None:
    await client.send(post(body))
    assert (await client.receive()).status == 200


async def state(rig: Rig) -> Any:
    assert rig.app.administration.listening is not None
    admin = "http://{}:{}".format(*rig.app.administration.listening)

    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{admin}/api/state") as answer,
    ):
        return await answer.json()


async def test_a_timestamp_is_named_within_200_requests(
    start_rig: StartRig, capsys: Capture
) -> None:
    """In /api/state, in stats, and by the doctor; the text is nowhere."""

    rig = await start_rig(answer_ok, admin="127.0.0.1:0")
    writer, client = Writer(), await rig.connect()
    shared = writer.text(15)
    for at in range(200):
        system = f"You help. It is {time_of(at)}.\n{shared}"
        await send(client, chat(system, writer.sentence()))
    (killer,) = (await state(rig))["cache_killers"]
    assert killer["kind"] == "timestamp"
    assert killer["first_block"] == 0
    assert killer["tokens_a_day"] > 0
    assert writer.words[0] not in json.dumps(killer)
    assert rig.app.administration.listening is not None
    admin = "http://{}:{}".format(*rig.app.administration.listening)
    assert await asyncio.to_thread(main, ["stats", "--admin", admin]) == 0
    shown = capsys.readouterr().out
    assert killer["example"] in shown
    # The cost a day moves with time; the rest of the sentence does not.
    told = killer["sentence"].partition(" a day")[0].rpartition(",")[0][:90]
    assert told in shown
    engine = rig.engines[0].url
    arguments = ["doctor", engine, "--no-probe", "--admin", admin, "--json"]
    await asyncio.to_thread(main, arguments)
    checks = json.loads(capsys.readouterr().out)["fleet"]["checks"]
    (finding,) = (one for one in checks if one["check"] == CacheKillers.name)
    assert finding["status"] == "warn"
    assert told in finding["found"]
    assert admin in finding["remedy"]


async def test_none_is_told_of_real_chats(start_rig: StartRig) -> None:
    rig = await start_rig(answer_ok, admin="127.0.0.1:0")
    client = await rig.connect()
    for body in real_chats(8):
        await send(client, body)
    assert (await state(rig))["cache_killers"] == []
