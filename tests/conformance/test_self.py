"""A backend that is this warmroute itself takes no requests; another one may."""

import os

from conformance.rig import StartRig, answer_ok, chat, post

from warmroute.proxy.config.backend import BackendConfig


def own_url(port: int) -> BackendConfig:
    """Describe a backend at this port; the configuration cannot know the number."""
    entry = {"name": "itself", "url": f"http://localhost:{port}", "engine": "openai"}
    return BackendConfig.model_validate(entry)


async def test_requests_do_not_go_round_in_circles(start_rig: StartRig) -> None:
    """With the real engine gone, a request is refused and opens a file or two."""
    rig = await start_rig(answer_ok, health={"interval_s": 0.2, "failures": 2})
    itself = rig.app.fleet.add(own_url(rig.port))
    await rig.until(lambda: itself.state == "down", "found out")
    await rig.engines[0].stop()
    before = len(os.listdir("/proc/self/fd"))
    reply = await rig.request(post(chat()))
    assert reply.status in (502, 503)
    assert len(os.listdir("/proc/self/fd")) < before + 20


async def test_the_reason_is_told(start_rig: StartRig, caplog) -> None:
    """In words, where the log says that it is down."""
    rig = await start_rig(answer_ok)
    with caplog.at_level("WARNING"):
        itself = rig.app.fleet.add(own_url(rig.port))
        await rig.until(lambda: itself.state == "down", "found out")
    (record,) = [one for one in caplog.records if one.message == "backend_down"]
    assert "this backend is this warmroute itself" in record.reason


async def test_a_chain_of_two_is_allowed(start_rig: StartRig) -> None:
    """Each has an id of its own, told by /health."""
    inner = await start_rig(answer_ok)
    url = f"http://127.0.0.1:{inner.port}"
    outer = await start_rig(backends=[{"url": url, "engine": "openai"}])
    await outer.all_up()
    assert (await outer.request(post(chat()))).status == 200
    ask = b"GET /health HTTP/1.1\r\nHost: p\r\n\r\n"
    replies = [await rig.request(ask) for rig in (inner, outer)]
    ids = {reply.value("x-warmroute-instance") for reply in replies}
    assert len(ids) == 2
    assert None not in ids
