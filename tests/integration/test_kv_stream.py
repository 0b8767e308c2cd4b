"""KV events over real ZMQ sockets, from a publisher into the index."""

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count

import pytest
import pytest_asyncio
import zmq
import zmq.asyncio
from conformance.rig import PATIENCE_S
from integration.publisher import Publisher

from warmroute.adapters.kv_events.address import EventAddress
from warmroute.adapters.kv_events.socket import ask_again
from warmroute.adapters.kv_events.subscriptions import Subscriptions
from warmroute.policies.errors import AdapterError
from warmroute.policies.kv.blocks import hash_tokens, root_hash
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.proxy.demo.child import free_port
from warmroute.proxy.view.stream import AskSnapshot, Stream
from warmroute.proxy.view.track import Track

SIZE = 4
ROOT = root_hash("m")


def stored(first: int, num_blocks: int = 1, parent: int | None = None) -> object:
    """Return blocks of which each is its own number, SIZE times."""
    numbers = range(first, first + num_blocks)
    return {
        "type": "BlockStored",
        "block_hashes": list(numbers),
        "parent_block_hash": parent,
        "token_ids": [number for number in numbers for _ in range(SIZE)],
        "block_size": SIZE,
        "medium": "GPU",
    }


def removed(number: int) -> object:
    return {"type": "BlockRemoved", "block_hashes": [number], "medium": "GPU"}


class Hearer:
    """A stream of one backend, with its index."""

    def __init__(
        self,
        address: EventAddress,
        subscriptions: Subscriptions,
        context: zmq.asyncio.Context,
        snapshot: AskSnapshot | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.index = PrefixIndex()
        tiers = ("gpu", "host", "disk")
        holders = {tier: self.index.add_holder("a", tier) for tier in tiers}
        stamps = count(1)
        self.stream = Stream(
            "a",
            address,
            Track(
                self.index,
                holders,
                lambda lora, salt: ROOT,
                lambda size: None,
                lambda: None,
            ),
            partial(ask_again, context),
            snapshot,
            lambda: float(next(stamps)),
            wall=wall,
        )
        member = subscriptions.add(address, self.stream.received, self.stream.turned)
        self.leave = partial(subscriptions.remove, member)
        self.stream.start()

    @property
    def has_caught_up(self) -> bool:
        """Tell whether a replay came, and nothing of it waits to be entered."""
        return self.stream.num_replays > 0 and not self.stream.is_catching_up

    def matched(self, first: int, num_blocks: int = 1) -> int:
        numbers = range(first, first + num_blocks)
        tokens = array("I", [one for one in numbers for _ in range(SIZE)])
        return self.index.match(hash_tokens(tokens, SIZE, ROOT)).gpu[0]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until it holds; the events tell, and the clock only gives up."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():  # noqa: ASYNC110 - a view has no event to wait for
                await asyncio.sleep(0.001)
        self.index.check_integrity()


@pytest_asyncio.fixture
async def context() -> AsyncIterator[zmq.asyncio.Context]:
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


@pytest_asyncio.fixture
async def subscriptions() -> AsyncIterator[Subscriptions]:
    context = zmq.Context()
    subscriptions = Subscriptions(context)
    yield subscriptions
    subscriptions.close()
    context.destroy(linger=0)


@asynccontextmanager
async def hearing(
    publisher: Publisher, subscriptions: Subscriptions
) -> AsyncIterator[Hearer]:
    """Hear a publisher that has published something, once all of it has come."""
    hearer = Hearer(publisher.address, subscriptions, publisher.context)
    try:
        await hearer.until(lambda: hearer.has_caught_up)
        yield hearer
    finally:
        await hearer.stream.close()
        await publisher.close()


async def connected(publisher: Publisher, hearer: Hearer) -> None:
    """Return once messages come, none of which was lost, and all is settled.

    What is published before the publisher knows of the subscription goes nowhere; and
    that ZMQ has connected makes the stream ask once more for what it may have missed.
    """
    await publisher.subscribed()
    await publisher.publish()
    stream = hearer.stream
    await hearer.until(
        lambda: stream.seq == publisher.last_seq and not stream.is_catching_up
    )


async def reborn(publisher: Publisher) -> Publisher:
    """Start another one at the address that the first has just left."""
    while True:
        try:
            return Publisher(publisher.context, publisher.address.endpoint)
        except zmq.ZMQError:
            await asyncio.sleep(0.01)


async def test_what_was_published_before_is_replayed(context, subscriptions) -> None:
    publisher = Publisher(context)
    await publisher.publish(stored(1, 3))
    await publisher.publish(removed(3))
    async with hearing(publisher, subscriptions) as hearer:
        assert hearer.matched(1, 3) == 2
        assert hearer.stream.sequencer.is_complete
        assert not hearer.stream.is_degraded


async def test_live_events_come_at_once(context, subscriptions) -> None:
    publisher = Publisher(context)
    async with hearing(publisher, subscriptions) as hearer:
        await connected(publisher, hearer)
        await publisher.publish(stored(1, 3))
        await hearer.until(lambda: hearer.matched(1, 3) == 3)
        await publisher.publish({"type": "AllBlocksCleared"})
        await hearer.until(lambda: hearer.matched(1, 3) == 0)


async def test_a_gap_is_healed(context, subscriptions) -> None:
    """The lost batch is asked for, and nothing comes out of order."""
    publisher = Publisher(context)
    async with hearing(publisher, subscriptions) as hearer:
        await connected(publisher, hearer)
        await publisher.publish(stored(1, 2), is_lost=True)
        await publisher.publish(removed(2))
        await hearer.until(lambda: hearer.matched(1, 2) == 1)
        assert hearer.stream.sequencer.num_gaps == 1


async def test_what_no_replay_brings_back_is_not_believed(
    context, subscriptions
) -> None:
    """A buffer that is too short loses all that was known before."""
    publisher = Publisher(context, buffer=1)
    async with hearing(publisher, subscriptions) as hearer:
        await connected(publisher, hearer)
        await publisher.publish(stored(1, 3))
        await hearer.until(lambda: hearer.matched(1, 3) == 3)
        await publisher.publish(removed(3), is_lost=True)
        await publisher.publish(stored(7))
        await hearer.until(lambda: hearer.matched(7) == 1)
        assert hearer.matched(1, 3) == 0
        assert hearer.stream.is_degraded


async def test_one_that_sends_nothing_again_is_whole_if_heard_from_the_first(
    context, subscriptions
) -> None:
    """Before its first event nothing is known to be missing, and then nothing is."""
    publisher = Publisher(context)
    address = replace(publisher.address, replay=None)
    asked = asyncio.Event()

    async def snapshot() -> None:
        asked.set()

    hearer = Hearer(address, subscriptions, context, snapshot)
    await asked.wait()
    await hearer.until(lambda: not hearer.stream.is_catching_up)
    assert hearer.stream.status == "silent"
    await publisher.subscribed()
    await publisher.publish(stored(1, 3))
    await hearer.until(lambda: hearer.matched(1, 3) == 3)
    assert hearer.stream.status == "live"
    await publisher.publish(removed(3), is_lost=True)
    await publisher.publish(stored(7))
    await hearer.until(lambda: hearer.matched(7) == 1)
    assert hearer.stream.status == "degraded"
    await hearer.stream.close()
    await publisher.close()


async def test_one_that_sends_nothing_again_and_was_heard_late_is_degraded(
    context, subscriptions
) -> None:
    publisher = Publisher(context)
    await publisher.publish(stored(1, 3))
    hearer = Hearer(replace(publisher.address, replay=None), subscriptions, context)
    await publisher.subscribed()
    await publisher.publish(stored(7))
    await hearer.until(lambda: hearer.matched(7) == 1)
    assert hearer.stream.status == "degraded"
    await hearer.stream.close()
    await publisher.close()


async def test_a_restarted_engine_has_nothing(context, subscriptions) -> None:
    """Though it came back at once, at the same address, and said nothing."""
    publisher = Publisher(context)
    await publisher.publish(stored(1, 3))
    async with hearing(publisher, subscriptions) as hearer:
        await connected(publisher, hearer)
        assert hearer.matched(1, 3) == 3
        await publisher.close()
        successor = await reborn(publisher)
        replay = successor.address.replay
        hearer.stream.address = EventAddress(publisher.address.endpoint, replay, "kv")
        await hearer.until(lambda: hearer.matched(1, 3) == 0)
        assert hearer.stream.sequencer.num_restarts == 1
        await successor.close()


async def test_two_engines_share_an_address_that_is_bound_here(
    context, subscriptions
) -> None:
    """Their topics are told apart exactly, though one begins with the other."""
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    one = Publisher(context, endpoint, connects=True, topic="kv-1")
    ten = Publisher(context, endpoint, connects=True, topic="kv-10")
    await one.publish(stored(1))
    await ten.publish(stored(10))
    async with (
        hearing(one, subscriptions) as hears_one,
        hearing(ten, subscriptions) as hears_ten,
    ):
        assert repr(subscriptions) == "<Subscriptions [2 on 1 sockets]>"
        await connected(one, hears_one)
        await connected(ten, hears_ten)
        await ten.publish(stored(11))
        await one.publish(stored(2))
        await hears_ten.until(lambda: hears_ten.matched(11) == 1)
        await hears_one.until(lambda: hears_one.matched(2) == 1)
        assert (hears_one.matched(11), hears_ten.matched(2)) == (0, 0)
        assert hears_one.stream.sequencer.num_wipes == 0


async def test_a_flood_is_drained_without_loss(context, subscriptions) -> None:
    publisher = Publisher(context)
    async with hearing(publisher, subscriptions) as hearer:
        await connected(publisher, hearer)
        for first in range(0, 30_000, 3):
            await publisher.publish(stored(first, 3))
        await hearer.until(lambda: hearer.matched(29_997, 3) == 3)
        assert hearer.index.blocks(0) == 30_000
        assert hearer.stream.sequencer.num_gaps == 0


async def test_an_address_that_is_taken_is_named(context, subscriptions) -> None:
    socket = context.socket(zmq.PUB)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    address = EventAddress(f"tcp://127.0.0.1:{port}", binds=True)
    with pytest.raises(AdapterError, match=rf"cannot bind tcp://127.0.0.1:{port}"):
        subscriptions.add(address, lambda seq, payload: None, lambda: None)
    socket.close()
