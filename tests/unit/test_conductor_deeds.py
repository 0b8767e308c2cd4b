"""What is done at the engines: within what one call may name, however much it is."""

from typing import Any, cast

import msgspec
import pytest
from unit.fleet_rig import Rig

from warmroute.adapters.kv_control import Changed, Retained, decode_request
from warmroute.adapters.kv_requests import MAX_BLOCKS, BlocksRequest, Request
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.proxy.conductor.deeds import Deeds
from warmroute.proxy.conductor.tokens import PrefixTokens
from warmroute.proxy.view import View

MANY = [*range(2 * MAX_BLOCKS + 5)]


class FakeControl:
    """A fake engine that reads each request as a door does, and has a cap."""

    def __init__(self, cap: int = len(MANY)) -> None:
        self.cap = cap
        self.named: list[tuple[str, list[int]]] = []

    def _read(self, verb: str, request: Request) -> list[int]:
        read = decode_request(verb, msgspec.json.encode(request))
        hashes = cast(BlocksRequest, read).hashes or []
        self.named.append((verb, hashes))
        return hashes

    async def retain(self, request: Request) -> Retained:
        named = len(self._read("retain", request))
        room = self.cap - sum(len(one) for _, one in self.named[:-1])
        kept = max(0, min(named, room))
        return Retained(retained=kept, named=named, total=kept, cap=self.cap)

    async def release(self, request: Request) -> Changed:
        return self._change("release", request)

    async def demote(self, request: Request) -> Changed:
        return self._change("demote", request)

    async def restore(self, request: Request) -> Changed:
        return self._change("restore", request)

    def _change(self, verb: str, request: Request) -> Changed:
        named = len(self._read(verb, request))
        return Changed(changed=named, named=named)


class FakeControls:
    """Fake levers: one engine's, whatever the backend."""

    def __init__(self, control: FakeControl) -> None:
        self._control = control

    def of(self, backend: object) -> FakeControl:
        return self._control


def deeds_at(control: FakeControl) -> Deeds:
    index, fleet = PrefixIndex(), Rig({"name": "a", "url": "http://127.0.0.1:1"}).fleet
    controls: Any = FakeControls(control)
    return Deeds(fleet, controls, View(index), index, PrefixTokens())


@pytest.mark.parametrize("verb", ["retain", "release", "demote", "restore"])
async def test_more_blocks_than_a_call_may_name_take_several(verb: str) -> None:
    control = FakeControl()
    more = (60.0,) if verb == "retain" else ()
    done = await getattr(deeds_at(control), verb)("a", MANY, *more)
    assert done in (None, len(MANY))
    assert [one for _, hashes in control.named for one in hashes] == MANY


async def test_nothing_is_retained_behind_what_was_refused() -> None:
    """A tail without its head is of no use."""
    control = FakeControl(cap=MAX_BLOCKS - 1)
    assert await deeds_at(control).retain("a", MANY, 60.0) == MAX_BLOCKS - 1
    assert len(control.named) == 1
