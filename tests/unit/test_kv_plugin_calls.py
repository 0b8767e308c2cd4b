"""Calls into an engine, as they go over its wire."""

import asyncio

import msgspec
import pytest

from warmroute.adapters.kv_plugin.calls import CoreCalls
from warmroute.adapters.kv_plugin.timer import ExpiryTimer
from warmroute.policies.errors import ClientError


class FakeWire:
    """A fake engine behind an encoder like those of the real ones."""

    async def call_utility_all_async(self, method: str, *args: object) -> list[object]:
        msgspec.msgpack.encode(args)
        return [{"parts": [], "done": True}]


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
async def test_a_number_that_fits_no_wire_is_the_callers_fault(number: int) -> None:
    with pytest.raises(ClientError, match="64 bits") as caught:
        await CoreCalls(FakeWire()).run("policy", name="lfu", options={"a": number})
    assert (caught.value.status, caught.value.code) == (400, "kv_request_invalid")


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63)])
async def test_every_other_number_goes_through(number: int) -> None:
    assert await CoreCalls(FakeWire()).run("budget", host_bytes=number) == []


class Overtaken:
    """A fake engine whose first answer is overtaken by the next retention's."""

    def __init__(self) -> None:
        self.due = iter([None, 0.0, None])
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.num_asked = 0

    async def call_utility_all_async(self, method: str, *args: object) -> list[object]:
        due_s = next(self.due)
        self.num_asked += 1
        self.asked.set()
        await self.may_answer.wait()
        return [{"parts": [{"due_s": due_s}], "done": True}]


async def test_what_is_retained_while_the_timer_asks_is_let_go_of_too() -> None:
    """The answer that nothing is due may be older than a retention."""
    engine = Overtaken()
    timer = ExpiryTimer(CoreCalls(engine))
    timer.look_again()
    await engine.asked.wait()
    timer.look_again()
    engine.may_answer.set()
    task = timer._task
    assert task is not None
    await asyncio.wait_for(task, 10)
    assert engine.num_asked == 3
