"""What wiped backends leave behind is freed in short slices of the event loop."""

import asyncio

from warmroute.policies.kv.radix import PrefixIndex
from warmroute.proxy.view.sweeper import SLICE_S, Sweeper
from warmroute.proxy.view.view import View

NUM_CHAINS, LENGTH = 200, 64


def fill(view: View, index: PrefixIndex, name: str = "a", first: int = 0) -> None:
    holder = index.add_holder(name)
    for at in range(first, first + NUM_CHAINS):
        blocks = list(range(1 + at * LENGTH, 1 + (at + 1) * LENGTH))
        index.store(holder, None, blocks, blocks, 16, view.stamp())


def announcing(index: PrefixIndex) -> View:
    view = View(index)
    view.add_backend("a")
    view.announce("a", dict)
    return view


def test_without_a_loop_all_goes_at_once() -> None:
    index = PrefixIndex()
    view = announcing(index)
    fill(view, index)
    view.cleared("a")
    assert (index.num_blocks, index.num_bytes, index.has_left) == (0, 0, False)
    assert index.holders.num_slots == 2


async def test_a_wiped_backend_fills_anew_while_its_old_blocks_go() -> None:
    index = PrefixIndex()
    view = announcing(index)
    fill(view, index)
    before = index.add_holder("a")
    tiers = view.cleared("a")
    assert tiers["gpu"] != before
    assert view.facts("a")["blocks"] == 0
    assert index.num_blocks == NUM_CHAINS * LENGTH
    fill(view, index, first=NUM_CHAINS)
    assert view.facts("a")["blocks"] == NUM_CHAINS * LENGTH
    async with asyncio.timeout(10):
        while index.has_left:  # noqa: ASYNC110 - an index has no event to wait for
            await asyncio.sleep(0)
    assert index.num_blocks == NUM_CHAINS * LENGTH
    index.check_integrity()


async def test_a_slice_ends_when_its_time_is_over() -> None:
    """Each look at this clock is a slice; the loop runs between two."""
    index = PrefixIndex()
    view = announcing(index)
    fill(view, index)
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += SLICE_S
        return now

    index.holders.renew("a")
    sweeper = Sweeper(index, clock)
    sweeper.start()
    sweeper.start()
    seen = {index.num_blocks}
    async with asyncio.timeout(10):
        while index.has_left:
            await asyncio.sleep(0)
            seen.add(index.num_blocks)
    assert len(seen) > NUM_CHAINS * LENGTH // 2048
    assert repr(sweeper) == "<Sweeper [sweeping: False]>"


async def test_a_removed_backend_leaves_nothing_to_one_of_its_name() -> None:
    index = PrefixIndex()
    view = announcing(index)
    fill(view, index)
    view.remove_backend("a")
    view.add_backend("a")
    assert view.facts("a")["blocks"] == 0
    assert index.has_left
    async with asyncio.timeout(10):
        while index.has_left:  # noqa: ASYNC110 - an index has no event to wait for
            await asyncio.sleep(0)
    assert (index.num_blocks, index.num_bytes) == (0, 0)


async def test_a_large_mirror_is_wiped_as_well_and_keeps_its_bound() -> None:
    """It is found by its order of use, not by keys."""
    index = PrefixIndex()
    view = View(index)
    view.add_backend("a", capacity_tokens=10**6)
    for at in range(NUM_CHAINS):
        blocks = list(range(1 + at * LENGTH, 1 + (at + 1) * LENGTH))
        index.insert(index.add_holder("a"), blocks, 16, view.stamp())
    view.wipe("a")
    holder = index.holders.all[index.add_holder("a")]
    assert (holder.blocks, holder.capacity) == (0, 10**6)
    index.check_integrity()
    async with asyncio.timeout(10):
        while index.has_left:  # noqa: ASYNC110 - an index has no event to wait for
            await asyncio.sleep(0)
    assert index.num_blocks == 0
