"""What engines have announced is known to the next decision, whatever comes first.

Between an announcement and the decision nothing here gives the event loop a turn: so it
is when the bytes of a request and those of an event are there in the same turn.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable

import pytest
import zmq.asyncio
from conformance.rig import PATIENCE_S
from integration.publisher import Publisher
from unit import fleet_rig
from unit.fleet_rig import Rig, entry

from warmroute.policies.kv.radix import PrefixIndex
from warmroute.policies.routing.base import build
from warmroute.policies.routing.load import FleetLoad
from warmroute.proxy.ledger import Ledger
from warmroute.proxy.prompt import PromptReader
from warmroute.proxy.router import Router, explained_head
from warmroute.proxy.sources import Sources
from warmroute.proxy.view import View

make = fleet_rig.make

SIZE = 4
TOKENS = [5] * (3 * SIZE + 1)
HEAD = explained_head("/v1/completions", {})
STORED = {
    "type": "BlockStored",
    "block_hashes": [1, 2, 3],
    "parent_block_hash": None,
    "token_ids": TOKENS[:-1],
    "block_size": SIZE,
    "medium": "GPU",
}
REMOVED = {"type": "BlockRemoved", "block_hashes": [3], "medium": "GPU"}


class House:
    """A router over two backends whose publishers the test plays."""

    def __init__(self, rig: Rig, publishers: dict[str, Publisher]) -> None:
        self.publishers = publishers
        index = PrefixIndex()
        self.view = View(index, time.monotonic)
        self.router = Router(
            rig.fleet,
            self.view,
            FleetLoad(),
            build("expected_ttft", {}),
            PromptReader(),
            Ledger(100, 1 << 20),
        )
        self.sources = Sources(rig.fleet, self.view, index, self.router)
        self.sources.start()
        rig.put_up(**dict.fromkeys(publishers, "m"))
        for name, publisher in publishers.items():
            self.view.add_backend(name, SIZE)
            rig[name].learn_events([publisher.address])
            self.sources.learned(rig[name])

    def promised(self) -> dict[str, int]:
        """Return what the next decision would promise of each backend."""
        body = json.dumps({"model": "m", "prompt": TOKENS}).encode()
        decision = self.router.explain(HEAD, self.router.read(HEAD, body))
        return dict(zip(self.publishers, decision.matched, strict=True))

    def finds(self, **tokens: int) -> bool:
        """Decide again and again, without a turn for the loop; ZMQ has threads."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if self.promised() == tokens:
                return True
        return False

    async def until_heard(self) -> None:
        """Wait until a message came by itself; a replay brings some before it."""
        for name, publisher in self.publishers.items():
            await publisher.subscribed()
            await publisher.publish()
            async with asyncio.timeout(PATIENCE_S):
                while not self._has_all(name):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)

    def _has_all(self, name: str) -> bool:
        facts, newest = self.view.facts(name), self.publishers[name].last_seq
        return (facts["seq"], facts["status"]) == (newest, "live")


@pytest.fixture
async def house(make: Callable[..., Rig]) -> AsyncIterator[House]:
    context = zmq.asyncio.Context()
    publishers = {name: Publisher(context) for name in "ab"}
    house = House(make(*map(entry, publishers)), publishers)
    await house.until_heard()
    yield house
    await house.sources.close()
    for publisher in publishers.values():
        await publisher.close()
    context.destroy(linger=0)


async def test_an_event_that_came_with_a_request_is_known_to_its_decision(
    house: House,
) -> None:
    await house.publishers["b"].publish(STORED)
    assert house.finds(a=0, b=3 * SIZE)
    await house.publishers["b"].publish(REMOVED)
    assert house.finds(a=0, b=2 * SIZE)


async def test_a_look_takes_nothing_from_the_loop(house: House) -> None:
    """ZMQ tells of what is new once, so that who is told must read it all."""
    publisher = house.publishers["a"]
    for number in range(40):
        await publisher.publish(REMOVED if number % 2 else STORED)
        async with asyncio.timeout(PATIENCE_S):
            while house.view.facts("a")["seq"] != publisher.last_seq:
                if number < 30:
                    house.promised()
                await asyncio.sleep(0)


async def test_a_backend_that_left_is_looked_at_no_more(house: House) -> None:
    backend = house.router.fleet.backends["b"]
    house.sources.removed(backend)
    await house.publishers["b"].publish(STORED)
    await house.publishers["a"].publish(STORED)
    assert house.finds(a=3 * SIZE, b=0)
