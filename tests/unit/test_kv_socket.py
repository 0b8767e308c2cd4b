"""What comes on a socket is handed on at once, and a flood in short bursts."""

import asyncio
from collections.abc import Iterator

import pytest
import zmq

from warmroute.adapters.kv_events.socket import EventSocket

ENDPOINT = "inproc://events"


@pytest.fixture
def publisher() -> Iterator[zmq.Socket[bytes]]:
    context = zmq.Context()
    socket = context.socket(zmq.XPUB)
    socket.bind(ENDPOINT)
    yield socket
    context.destroy(linger=0)


async def test_large_messages_are_left_for_the_next_turn(
    publisher: zmq.Socket[bytes],
) -> None:
    """Half a millisecond is the bound, however few messages that is."""
    came: list[int] = []
    turns = [0]
    turn_of: dict[int, int] = {}
    num_turns = 0
    all_came = asyncio.Event()
    now = 0.0

    def take(topic: bytes, seq: int, payload: bytes) -> None:
        nonlocal now
        came.append(seq)
        turn_of[seq] = num_turns
        now += 0.0004
        if len(came) == 6:
            all_came.set()

    def count_turns() -> None:
        nonlocal num_turns
        num_turns += 1
        if not all_came.is_set():
            asyncio.get_running_loop().call_soon(count_turns)

    socket = EventSocket(
        publisher.context,
        ENDPOINT,
        False,
        take,
        lambda: None,
        on_read=lambda: turns.append(len(came)),
        clock=lambda: now,
    )
    try:
        socket.subscribe("")
        publisher.recv()  # the subscription has come
        for seq in range(6):
            publisher.send_multipart([b"", seq.to_bytes(8, "big"), b"payload"])
        socket.read()
        assert came == [0, 1]
        socket.read()
        assert came == [0, 1], "a second look in one turn of the loop took more"
        count_turns()
        async with asyncio.timeout(5):
            await all_came.wait()
    finally:
        socket.close()
    assert came == list(range(6))
    assert turns[:3] == [0, 2, 4]
    assert len({turn_of[seq] for seq in (0, 2, 4)}) == 3, "two bursts in one turn"
