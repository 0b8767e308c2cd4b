"""Calls into an engine, as they go over its wire."""

import msgspec
import pytest

from warmroute.adapters.kv_plugin.calls import CoreCalls
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
