"""How the end of a process is asked for."""

import asyncio
import os
import signal

from warmroute.adapters.stopping import Stopping


async def test_a_signal_asks_for_the_end() -> None:
    """The first one drains, the second one hurries."""
    stopping = Stopping()
    drained = asyncio.Event()
    assert repr(stopping) == "<Stopping not asked>"
    with stopping.on_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(10):
            await stopping.asked()
        assert repr(stopping) == "<Stopping asked>"
        assert not stopping.is_hurried
        os.kill(os.getpid(), signal.SIGINT)
        async with asyncio.timeout(10):
            await stopping.unless_hurried(drained.wait())
    assert repr(stopping) == "<Stopping hurried>"
    assert stopping.is_hurried


async def test_an_unhurried_end_waits_for_the_drain() -> None:
    """Nothing is cut short."""
    drained = asyncio.Event()
    asyncio.get_running_loop().call_soon(drained.set)
    await Stopping().unless_hurried(drained.wait())
    assert drained.is_set()
