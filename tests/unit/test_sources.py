"""KV events that are published and not followed: why is told outside the log, too."""

import importlib.util
from collections.abc import Callable
from typing import Any, cast

import pytest
import zmq
from unit import fleet_rig
from unit.fleet_rig import Rig, entry

from warmroute.adapters.kv_events.address import EventAddress
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.proxy.router import Router
from warmroute.proxy.sources import Sources
from warmroute.proxy.view import View

make = fleet_rig.make

Make = Callable[..., Rig]


def sources_of(rig: Rig, *addresses: EventAddress) -> Sources:
    """Return the sources of a fleet whose backend `a` publishes there."""
    index = PrefixIndex()
    view = View(index)
    view.add_backend("a")
    rig.put_up(a="m")
    rig["a"].learn_events(list(addresses))
    return Sources(rig.fleet, view, index, cast(Router, None))


async def test_without_pyzmq_the_remedy_is_told(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make(entry("a"))
    sources = sources_of(rig, EventAddress("tcp://127.0.0.1:5557"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    sources.start()
    sources.learned(rig["a"])
    assert "pip install 'warmroute[events]'" in str(sources.not_followed("a"))
    rig["a"].learn_events([])
    assert sources.not_followed("a") is None


async def test_an_address_that_cannot_be_used_is_told_until_it_can(make: Make) -> None:
    context: zmq.Context[Any] = zmq.Context()
    taken = context.socket(zmq.PUB)
    port = taken.bind_to_random_port("tcp://127.0.0.1")
    address = EventAddress(f"tcp://127.0.0.1:{port}", binds=True)
    rig = make(entry("a"))
    sources = sources_of(rig, address)
    sources.start()
    sources.learned(rig["a"])
    assert f"cannot bind {address.endpoint}" in str(sources.not_followed("a"))
    rig["a"].learn_events([EventAddress("tcp://127.0.0.1:*", binds=True)])
    sources.learned(rig["a"])
    assert sources.not_followed("a") is None
    await sources.close()
    context.destroy(linger=0)


async def test_ranks_that_cannot_be_chosen_are_told(make: Make) -> None:
    rig = make(entry("a"))
    one = EventAddress("tcp://127.0.0.1:5557")
    sources = sources_of(rig, one, EventAddress("tcp://127.0.0.1:5558"))
    sources.start()
    sources.learned(rig["a"])
    assert "2 publishers of ranks" in str(sources.not_followed("a"))
    await sources.close()
