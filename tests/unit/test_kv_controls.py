"""What each engine answers for, asked once a life and again while it does not tell."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from unit.fake_clock import FakeClock

from warmroute.adapters.kv_control import VERBS, Capabilities
from warmroute.adapters.kv_requests import Request
from warmroute.policies.errors import ClientError
from warmroute.proxy.kv.controls import Controls


class FakeAdapter:
    """A fake adapter, and the control of its engine, which answers one by one."""

    name = "fake"

    def __init__(self, *answers: Capabilities | ClientError) -> None:
        self.answers = list(answers)

    def kv_control(self, endpoint: object) -> "FakeAdapter":
        return self

    async def capabilities(self, request: Request) -> Capabilities:
        answer = self.answers.pop(0)
        if isinstance(answer, ClientError):
            raise answer
        return answer


class Asking:
    """Controls of one backend that is up."""

    def __init__(self, *answers: Capabilities | ClientError) -> None:
        self.adapter, self.clock = FakeAdapter(*answers), FakeClock()
        backend = SimpleNamespace(
            name="a", state="up", incarnation=1, adapter=self.adapter, url="http://a"
        )
        endpoint = SimpleNamespace(allowing=lambda *bounds: None)
        fleet: Any = SimpleNamespace(
            backends={"a": backend}, endpoint=lambda backend: endpoint
        )
        self.controls = Controls(fleet, clock=self.clock)

    async def facts(self) -> Any:
        """Return what is known once the engine has answered."""
        self.controls.facts("a")
        await asyncio.gather(*self.controls._tasks)
        return self.controls.facts("a")


ALL = Capabilities(verbs=dict.fromkeys(VERBS, True))


@pytest.mark.parametrize("status", [500, 503])
async def test_an_engine_that_could_not_tell_is_asked_again(status: int) -> None:
    """One that was stuck for a moment would do nothing until its next start."""
    asking = Asking(ClientError(status, "kv_engine_silent", "is it stuck?"), ALL)
    assert (await asking.facts())["flush"] == "is it stuck?"
    asking.clock.now += 5.0
    assert (await asking.facts())["flush"] is True


@pytest.mark.parametrize("status", [401, 403, 501])
async def test_an_engine_that_refuses_is_not_asked_again(status: int) -> None:
    asking = Asking(ClientError(status, "c", "never"), ALL)
    assert (await asking.facts())["flush"] == "never"
    asking.clock.now += 5.0
    assert (await asking.facts())["flush"] == "never"


async def test_reasons_are_short_however_much_an_engine_says() -> None:
    asking = Asking(Capabilities(verbs={**ALL.verbs, "flush": "x" * 10_000}))
    told = await asking.facts()
    assert told["flush"] == "x" * 1_000
    assert told["evict"] is True
