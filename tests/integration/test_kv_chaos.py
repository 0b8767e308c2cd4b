"""Whatever happens to the events of an engine, the view tells the truth or says so.

More of it: ``pytest tests/integration/test_kv_chaos.py --chaos-rounds 500``.
"""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from random import Random

import pytest
import pytest_asyncio
import zmq
import zmq.asyncio
from integration import test_kv_stream
from integration.chaos import Chaos, World, reborn
from integration.test_kv_stream import Hearer

from warmroute.adapters.kv_control import Snapshot
from warmroute.adapters.kv_events.subscriptions import Subscriptions

context = test_kv_stream.context
subscriptions = test_kv_stream.subscriptions

STEPS = 40
DELAY_S = 5.0
NOW = 1e4


class Drama:
    """A world, its publisher, and who hears it."""

    def __init__(
        self, seed: int, has_snapshot: bool, context: zmq.asyncio.Context
    ) -> None:
        self.random = Random(seed)
        self.has_snapshot = has_snapshot
        self.num_lives = 1
        self.world = World(self.random, not has_snapshot)
        self.chaos = Chaos(context, self.random, 1)
        self.num_degraded = 0

    def hear(self, subscriptions: Subscriptions) -> None:
        ask = self.snapshot if self.has_snapshot else None
        address, context = self.chaos.address, self.chaos.context
        self.hearer = Hearer(address, subscriptions, context, ask, lambda: NOW)

    async def snapshot(self) -> Snapshot:
        seq = self.chaos.last_seq
        return self.world.snapshot(seq if seq >= 0 else None)

    async def act(self) -> None:
        """Work, and tell of it; now and then the engine dies and another one comes."""
        for _ in range(self.random.randint(1, STEPS)):
            for _ in range(self.random.randint(1, 3)):
                self.world.work()
            events, self.world.events = self.world.events, []
            await self.chaos.tell(events)
        if self.random.random() < 0.3:
            self.chaos.cut()
        if self.random.random() < 0.15:
            self.num_lives += 1
            self.world = World(self.random, not self.has_snapshot)
            self.chaos = await reborn(self.chaos, self.random, self.num_lives)

    async def settle(self) -> None:
        """Let all that is under way arrive, and what is missing be asked for."""
        await self.chaos.calm()
        try:
            async with asyncio.timeout(DELAY_S):
                await self._heard()
        except TimeoutError:
            stream, last = self.hearer.stream, self.chaos.last_seq
            pytest.fail(f"{stream}: {stream.status} at {stream.seq}, not {last}")
        self.chaos.is_calm = False

    async def _heard(self) -> None:
        for polls in count():
            if polls % 20 == 0:
                await self.chaos.tell([])
            await asyncio.sleep(0.001)
            if self.is_up_to_date:
                return

    @property
    def is_up_to_date(self) -> bool:
        """Tell whether the newest message of this engine was entered."""
        stream = self.hearer.stream
        made_at = NOW - (stream.lag_s or 0.0)  # tells engines apart
        return (
            stream.seq == self.chaos.last_seq
            and abs(made_at - self.chaos.made_at) < 1e-7
            and not stream.is_catching_up
        )

    def check(self) -> None:
        """Hold the view against the pool."""
        index, truth = self.hearer.index, self.world.truth
        index.check_integrity()
        self.world.pool.check_integrity()
        told = {
            one
            for run in index.root.walk()
            if run.parent is not None
            for one in run.hashes[: run.held(0)]
        }
        assert not told - truth, "blocks are claimed that are not there"
        status = self.hearer.stream.status
        assert status in ("live", "degraded")
        if status == "live":
            assert told == truth
        self.num_degraded += status == "degraded"


@pytest_asyncio.fixture
async def drama(
    request: pytest.FixtureRequest,
    context: zmq.asyncio.Context,
    subscriptions: Subscriptions,
) -> AsyncIterator[Drama]:
    seed, has_snapshot = request.param
    drama = Drama(seed, has_snapshot, context)
    drama.hear(subscriptions)
    yield drama
    await drama.hearer.stream.close()
    await drama.chaos.close()


@pytest.mark.parametrize(
    "drama",
    [(1, False), (2, False), (3, True)],
    indirect=True,
    ids=["replay-1", "replay-2", "snapshot"],
)
async def test_the_view_converges_to_the_truth_or_says_that_it_is_degraded(
    drama: Drama, pytestconfig: pytest.Config
) -> None:
    """It never claims what is not there for longer than the messages take.

    With a snapshot to fall back to it is never degraded.
    """
    for _ in range(pytestconfig.getoption("chaos_rounds")):
        await drama.act()
        await drama.settle()
        drama.check()
    sequencer = drama.hearer.stream.sequencer
    assert sequencer.num_gaps > 0
    assert drama.num_lives > 1
    assert not (drama.has_snapshot and drama.num_degraded)
