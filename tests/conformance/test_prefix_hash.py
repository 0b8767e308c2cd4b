"""Prompts that begin alike meet at one backend, from the bytes of their requests."""

from conformance.rig import StartRig, answer_ok, chat, post


async def test_chats_with_one_start_share_a_home(start_rig: StartRig) -> None:
    """What follows the first 1024 tokens moves nobody; other starts spread."""
    rig = await start_rig(*[answer_ok] * 4, policy="prefix_hash")
    homes = []
    for start in range(12):
        opening = f"{start} reads the manual. " * 250
        served = set()
        for end in ("Why?", "Who asked for this, and when was it?"):
            body = chat(opening + end)
            reply = await rig.request(post(body, extra="x-warmroute-explain: 1\r\n"))
            assert reply.value("x-warmroute-reason") == "hash"
            served.add(reply.value("x-warmroute-backend"))
        assert len(served) == 1
        homes.append(served.pop())
    assert len(set(homes)) >= 3
    await rig.released()
