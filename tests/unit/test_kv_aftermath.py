"""What an eviction makes of the view: all of it, and not in one breath."""

import asyncio
from typing import Any

from warmroute.adapters.kv_control import Evicted
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.proxy.kv.aftermath import Aftermath

KEYS = [*range(1, 33)]


class Hurrying:
    """A clock by which whatever is done takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


class FakeView:
    """A fake view of one backend, whose engine announces with its next step."""

    def __init__(self) -> None:
        self.index = PrefixIndex()
        self.gpu = self.index.add_holder("a")
        self.index.store(self.gpu, None, KEYS, KEYS, 16, 1.0)
        self.seq: int | None = 7
        self.is_known = True

    def has(self, name: str) -> bool:
        return self.is_known

    def tiers(self, name: str) -> tuple[int, ...]:
        return (self.gpu,)

    def facts(self, name: str) -> dict[str, object]:
        return {"source": "events", "seq": self.seq}

    @property
    def num_blocks(self) -> int:
        return self.index.blocks(self.gpu)


def following(view: FakeView) -> "asyncio.Task[None]":
    fake: Any = view
    aftermath = Aftermath(fake, view.index, Hurrying())
    answer = Evicted(evicted=KEYS[::-1], kept=[])
    return asyncio.create_task(aftermath.follow("a", answer))


async def half_way(view: FakeView) -> None:
    await asyncio.sleep(0)
    assert 0 < view.num_blocks < len(KEYS)


async def test_others_have_their_turn_while_many_blocks_go() -> None:
    view = FakeView()
    task = following(view)
    await half_way(view)
    await task
    assert view.num_blocks == 0


async def test_an_engine_that_tells_meanwhile_is_believed() -> None:
    """What it stores again behind the eviction must not go by what is older."""
    view = FakeView()
    task = following(view)
    await half_way(view)
    view.seq = 8
    num_left = view.num_blocks
    await task
    assert view.num_blocks == num_left


async def test_a_backend_may_leave_meanwhile() -> None:
    view = FakeView()
    task = following(view)
    await half_way(view)
    view.is_known = False
    await task
    assert view.num_blocks > 0
