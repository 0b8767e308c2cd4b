"""The stream of a request: order, end, errors, and what dropping it does."""

import asyncio
import gc

import pytest

from warmroute.adapters.embedded.engine.request import GenerationRequest
from warmroute.adapters.embedded.engine.stream import (
    Delta,
    EngineFailed,
    RequestStream,
)


class Aborts:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def aborts():
    return Aborts()


def stream(aborts, n=1):
    return RequestStream(GenerationRequest("r", [1], n=n), aborts)


class TestRequestStream:
    async def test_ends_after_the_last_choice(self, aborts):
        """Two choices end one after the other; then there is no more."""
        one = stream(aborts, n=2)
        one.push(Delta(1, [5], "b", "stop"), 16)
        one.push(Delta(0, [4], "a", "length"), 16)

        assert [delta.index async for delta in one] == [1, 0]
        assert one.num_cached_tokens == 16

    async def test_reader_waits_for_the_next_delta(self, aborts):
        """A reader that came first gets what comes later."""
        one = stream(aborts)
        reader = asyncio.ensure_future(anext(one))
        await asyncio.sleep(0)
        one.push(Delta(0, [4], "a", "stop"), 0)

        assert (await reader).text == "a"

    async def test_failure_comes_after_what_was_generated(self, aborts):
        """Deltas before the failure are read first, and again it fails."""
        one = stream(aborts)
        one.push(Delta(0, [4], "a"), 0)
        one.fail(EngineFailed("broken"))

        assert (await anext(one)).text == "a"
        for _ in range(2):
            with pytest.raises(EngineFailed, match="broken"):
                await anext(one)

    async def test_dropping_it_unfinished_aborts(self, aborts):
        """Nobody needs to say that nobody listens."""
        one = stream(aborts)
        del one
        gc.collect()

        assert aborts.count == 1

    async def test_dropping_it_finished_does_not(self, aborts):
        """What has ended is not aborted."""
        one = stream(aborts)
        one.push(Delta(0, [4], "a", "stop"), 0)
        del one
        gc.collect()

        assert aborts.count == 0

    async def test_leaving_the_context_aborts(self, aborts):
        """So does asking for it, until it has ended."""
        one = stream(aborts)
        async with one:
            pass
        one.abort()
        one.push(Delta(0, [], "", "abort"), 0)

        assert aborts.count == 2
        assert one.is_finished
