"""What the conductor retains: never more than its share, and all of it let go of."""

import asyncio
from typing import Any

import pytest
from unit.fake_clock import FakeClock
from unit.fleet_rig import Rig

from warmroute.policies.conducting.item import Item, Talk, Turn, Wish
from warmroute.policies.errors import BackendUnavailable, ClientError
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.proxy.conductor.conductor import Conductor
from warmroute.proxy.conductor.retaining import Retainer
from warmroute.proxy.config.sections import ConductorConfig
from warmroute.proxy.kv.controls import Controls
from warmroute.proxy.view import View


class FakeEngines:
    """A fake of the deeds: keeps what fits a cap, the first blocks first."""

    def __init__(self, cap: int = 1000) -> None:
        self.cap = cap
        self.held: dict[str, set[int]] = {}
        self.error: Exception | None = None
        self.keys: dict[int, list[int]] = {}
        self.below: list[int] = []
        self.restore_error: Exception | None = None
        self.num_below = 0
        self.arrived = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.has_lower_tiers = False

    async def retain(self, name: str, keys: list[int], ttl_s: float) -> int:
        self.arrived.set()
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        held = self.held.setdefault(name, set())
        for at, key in enumerate(keys):
            if key not in held and len(held) == self.cap:
                return at
            held.add(key)
        return len(keys)

    async def release(self, name: str, keys: list[int]) -> None:
        if self.error is not None:
            raise self.error
        self.held[name] -= set(keys)

    def resident(self, item: Item) -> list[int]:
        return self.keys[item.tail]

    def lower(self, item: Item) -> list[int]:
        return self.below

    async def restore(self, name: str, keys: list[int]) -> int:
        if self.restore_error is not None:
            raise self.restore_error
        num_brought, self.num_below = self.num_below, 0
        return num_brought

    def can(self, name: str, verb: str) -> bool:
        return True


def talk(tail: int, blocks: int, seen: int) -> Talk:
    facts: dict[str, Any] = {"ends": (), "fresh_tokens": 0, "cached_tokens": 0}
    return Talk(Turn(0.0, "a", tail, blocks, 16, seen, None, **facts), 0)


class Led:
    """A real conductor over fake engines."""

    def __init__(self, engines: FakeEngines, capacity: int) -> None:
        index, fleet = PrefixIndex(), Rig().fleet
        config = ConductorConfig(enabled=True, retained_share=0.25)
        view, self.clock, self.engines = View(index), FakeClock(1000.0), engines
        self.conductor = Conductor(
            fleet, Controls(fleet), view, index, config, clock=self.clock
        )
        fakes: Any = engines
        self.conductor._deeds = fakes
        self.conductor._retainer = Retainer(engines, self.clock)
        self.conductor.plan.pool("a").capacity = capacity

    async def keep(self, item: Talk, keys: list[int]) -> None:
        self.engines.keys[item.tail] = keys
        await self.conductor._do(Wish("retain", item, "kept", 10.0))

    @property
    def retained(self) -> object:
        return self.conductor.describe()["retained_blocks"]


class TestShare:
    async def test_blocks_that_chains_share_are_counted_once(self) -> None:
        """A share of 8 blocks takes two chains of 5 that have 2 in common."""
        led = Led(FakeEngines(), capacity=8 * 16 * 4)
        await led.keep(talk(1, 5, 2), [10, 11, 1, 2, 3])
        await led.keep(talk(2, 5, 2), [10, 11, 4, 5, 6])
        assert led.retained == {"a": 8}
        await led.keep(talk(3, 5, 4), [10, 11, 1, 2, 9])
        assert led.retained == {"a": 8}
        assert len(led.engines.held["a"]) == 8

    async def test_the_shared_head_of_a_chain_takes_room_as_well(self) -> None:
        """Its own blocks alone would fit."""
        led = Led(FakeEngines(), capacity=8 * 16 * 4)
        await led.keep(talk(1, 9, 7), [*range(9)])
        assert led.retained == {}
        assert led.engines.held == {}

    async def test_what_a_conversation_left_counts_until_its_time_is_over(self) -> None:
        led = Led(FakeEngines(), capacity=8 * 16 * 4)
        item = talk(1, 5, 0)
        await led.keep(item, [1, 2, 3, 4, 5])
        led.conductor.plan.let_go(item)
        await led.keep(talk(2, 5, 0), [6, 7, 8, 9, 10])
        assert led.retained == {"a": 5}
        led.clock.now += 11.0
        led.engines.held["a"].clear()
        await led.conductor.tick()
        await led.keep(talk(2, 5, 0), [6, 7, 8, 9, 10])
        assert led.engines.held["a"] == {6, 7, 8, 9, 10}

    async def test_what_the_engine_refused_is_not_said_to_be_retained(self) -> None:
        led = Led(FakeEngines(cap=3), capacity=100 * 16 * 4)
        item = talk(1, 5, 0)
        await led.keep(item, [1, 2, 3, 4, 5])
        assert led.retained == {"a": 3}
        assert item.held_until == 0.0
        (action,) = led.conductor.actions
        assert action.outcome == "refused in part: 3 of 5 blocks kept"

    async def test_all_that_was_done_for_a_turn_is_judged_by_it(self) -> None:
        """Events are late: what is back already is asked for once more."""
        led = Led(FakeEngines(), capacity=100 * 16 * 4)
        item, plan = talk(1, 5, 0), led.conductor.plan
        led.engines.below, led.engines.num_below = [4, 5], 2
        await led.keep(item, [1, 2, 3])
        await led.keep(item, [1, 2, 3])
        led.engines.below = []
        await led.keep(item, [1, 2, 3, 4, 5])
        again = {"ends": (), "fresh_tokens": 0, "cached_tokens": 80}
        plan._came(item, Turn(9.0, "a", 1, 5, 16, 5, 1, **again))  # type: ignore[arg-type]
        kept, nothing, brought = led.conductor.actions
        assert kept.outcome == brought.outcome == "hit: 80 of 80 tokens were cached"
        assert nothing.verdict == "nothing"

    async def test_a_failure_is_that_of_the_action_that_failed(self) -> None:
        led = Led(FakeEngines(), capacity=100 * 16 * 4)
        item = talk(1, 5, 0)
        await led.keep(item, [1, 2, 3, 4, 5])
        led.engines.below, led.engines.num_below = [4, 5], 2
        led.engines.error = BackendUnavailable("it is gone")
        with pytest.raises(BackendUnavailable):
            await led.keep(item, [1, 2, 3, 4, 5])
        brought, kept = led.conductor.actions
        assert (brought.kind, brought.verdict) == ("restore", None)
        assert (kept.kind, kept.outcome) == ("retain", "failed: it is gone")

    @pytest.mark.parametrize(
        ("error", "outcome"),
        [
            (ClientError(501, "c", "no"), "failed: no"),
            (RuntimeError("a secret"), "failed: a fault of the conductor"),
        ],
    )
    async def test_whatever_fails_it_has_an_outcome_and_is_counted(
        self, error: Exception, outcome: str
    ) -> None:
        led = Led(FakeEngines(), capacity=100 * 16 * 4)
        led.engines.below, led.engines.restore_error = [4, 5], error
        led.engines.keys[1] = [1, 2, 3]
        await led.conductor._do_all([Wish("restore", talk(1, 5, 0), "due")])
        (action,) = led.conductor.actions
        assert action.outcome == outcome
        assert led.conductor.actions.counts == {("restore", "failed"): 1}
        assert led.conductor.num_failures == 1

    async def test_what_a_stop_cuts_off_has_an_outcome_and_is_counted(self) -> None:
        led = Led(FakeEngines(), capacity=100 * 16 * 4)
        led.engines.may_answer.clear()
        acting = asyncio.create_task(led.keep(talk(1, 5, 0), [1, 2, 3, 4, 5]))
        led.conductor._task = acting
        await led.engines.arrived.wait()
        stopping = asyncio.create_task(led.conductor.stop())
        await asyncio.gather(acting, return_exceptions=True)
        led.engines.may_answer.set()
        await stopping
        (action,) = led.conductor.actions
        assert action.outcome == "failed: cut off before the engine had answered"
        assert led.conductor.actions.counts == {("retain", "failed"): 1}
        assert led.engines.held == {"a": set()}


class TestRetainer:
    @pytest.mark.parametrize(
        ("error", "num_noted"),
        [(ClientError(501, "c", "no"), 1), (BackendUnavailable("lost"), 3)],
    )
    async def test_a_refusal_takes_all_back_and_a_lost_answer_nothing(
        self, error: Exception, num_noted: int
    ) -> None:
        """Nobody knows what came of a request without an answer."""
        engines = FakeEngines()
        retainer = Retainer(engines, FakeClock(1000.0))
        await retainer.retain("a", [1], 10.0)
        engines.error = error
        with pytest.raises(type(error)):
            await retainer.retain("a", [1, 2, 3], 10.0)
        assert retainer.holdings.count("a") == num_noted

    async def test_a_refused_part_keeps_its_earlier_time(self) -> None:
        engines, clock = FakeEngines(cap=2), FakeClock(1000.0)
        retainer = Retainer(engines, clock)
        await retainer.retain("a", [1, 3], 10.0)
        assert await retainer.retain("a", [1, 2, 3], 60.0) == 1
        retainer.holdings.expire(clock() + 20.0)
        assert retainer.holdings.take_all() == {"a": [1]}

    async def test_what_is_under_way_is_let_go_of_too(self) -> None:
        """The engine has the request when the conductor is stopped."""
        engines = FakeEngines()
        retainer = Retainer(engines, FakeClock(1000.0))
        engines.may_answer.clear()
        task = asyncio.create_task(retainer.retain("a", [1, 2], 10.0))
        await engines.arrived.wait()
        task.cancel()
        stopping = asyncio.create_task(retainer.let_go())
        await asyncio.gather(task, return_exceptions=True)
        engines.may_answer.set()
        await stopping
        assert engines.held == {"a": set()}
        assert retainer.holdings.counts() == {}

    async def test_an_engine_that_does_not_let_go_is_told_of(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        engines = FakeEngines()
        retainer = Retainer(engines, FakeClock(1000.0))
        await retainer.retain("a", [1, 2], 10.0)
        engines.error = ClientError(401, "engine_token_wrong", "wants another key")
        await retainer.let_go()
        (record,) = caplog.records
        assert record.getMessage() == "conductor_release_failed"
        assert vars(record)["backend"] == "a"
        assert vars(record)["reason"] == "wants another key"
