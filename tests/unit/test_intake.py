"""Events are entered in short pieces, in order, and streams take turns."""

import asyncio
from array import array
from collections import deque
from collections.abc import AsyncIterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.adapters.kv_events.address import EventAddress
from warmroute.adapters.kv_events.wire import Removed, Stored, cut, decode
from warmroute.policies.kv.blocks import hash_tokens
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.proxy.view.intake import Intake
from warmroute.proxy.view.stream import Stream
from warmroute.proxy.view.track import Track
from warmroute.proxy.view.turns import Turns

SIZE = 4


def stored(first: int, count: int, parent: int | None = None) -> Stored:
    keys = list(range(first, first + count))
    tokens = [key for key in keys for _ in range(SIZE)]
    extra = [None] * count
    return Stored(keys, parent, tokens, SIZE, medium="GPU", extra_keys=extra)


def packed(*events: object, time: float = 1.5) -> bytes:
    return msgspec.msgpack.encode([time, list(events), 3])


class Rig:
    """One intake with its index; the stamps count the batches entered."""

    def __init__(self) -> None:
        self.index = PrefixIndex()
        tiers = {one: self.index.add_holder("a", one) for one in ("gpu", "host")}
        tiers["disk"] = self.index.add_holder("a", "disk")
        self.num_entered = 0
        track = Track(self.index, tiers, lambda *_: 1, lambda _: None, lambda: None)
        self.intake = Intake(track, self.stamp, wall=lambda: 2.0)

    def stamp(self) -> float:
        self.num_entered += 1
        return float(self.num_entered)

    def matched(self, count: int) -> int:
        tokens = array("I", [key for key in range(1, count + 1) for _ in range(SIZE)])
        return self.index.match(hash_tokens(tokens, SIZE, 1)).gpu[0]

    def enter_all(self) -> int:
        """Enter everything; returns how many pieces that took."""
        num_pieces = 0
        while self.intake:
            self.intake.enter()
            num_pieces += 1
        return num_pieces


def test_a_small_batch_is_one_piece() -> None:
    rig = Rig()
    rig.intake.add([packed(stored(1, 3), stored(4, 2, 3))])
    assert (rig.enter_all(), rig.matched(5), rig.intake.lag_s) == (1, 5, 0.5)


@pytest.mark.parametrize("count", [3, 20_000])
def test_only_live_batches_tell_how_late_events_come(count: int) -> None:
    """What is sent again is as old as it is, however good the way here."""
    rig = Rig()
    rig.intake.add([packed(stored(1, count))], is_live=False)
    rig.enter_all()
    assert rig.intake.lag_s is None
    rig.intake.add([packed(stored(count + 1, count, count), time=1.75)])
    rig.enter_all()
    assert rig.intake.lag_s == 0.25
    rig.intake.add([packed(stored(9 * count, 1, 2 * count))], is_live=False)
    rig.enter_all()
    assert rig.intake.lag_s == 0.25


def test_a_large_batch_is_entered_some_events_at_a_time() -> None:
    events = [stored(at, 50, at - 1 or None) for at in range(1, 6001, 50)]
    rig = Rig()
    large = packed(*events)
    rig.intake.add([large, packed(Removed([6000], "GPU"))])
    assert len(large) > 64 << 10
    assert rig.enter_all() > len(large) // (16 << 10)
    assert rig.num_entered < len(events)
    assert rig.matched(6000) == 5999
    rig.index.check_integrity()


def test_short_events_of_a_batch_are_entered_some_at_a_time() -> None:
    """Seven that remove a block each may take as long as two that store 64."""
    rig = Rig()
    events = [stored(at, 64, at - 1 or None) for at in range(1, 2561, 64)]
    rig.intake.add([packed(*events)])
    rig.enter_all()
    assert (rig.num_entered, rig.matched(2560)) == (40 // 2, 2560)
    rig.intake.add([packed(*(Removed([at], "GPU") for at in range(2560, 2200, -1)))])
    rig.enter_all()
    assert rig.num_entered == 20 + -(-360 // 7)
    assert rig.matched(2560) == 2200


def test_a_message_of_less_than_a_kilobyte_may_remove_too_much_for_one_piece() -> None:
    rig = Rig()
    rig.intake.add([packed(stored(1, 500))])
    rig.enter_all()
    message = packed(Removed(list(range(500, 400, -1)), "GPU"))
    assert len(message) < 1024
    rig.intake.add([message])
    rig.enter_all()
    assert (rig.num_entered, rig.matched(500)) == (1 + -(-100 // 8), 400)


def test_a_long_event_is_entered_some_blocks_at_a_time() -> None:
    rig = Rig()
    rig.intake.add([packed(stored(1, 20_000))])
    rig.enter_all()
    assert rig.num_entered == 40
    assert rig.matched(20_000) == 20_000
    rig.intake.add([packed(Removed(list(range(20_000, 5_000, -1)), "GPU"))])
    rig.enter_all()
    assert rig.num_entered == 40 + -(-15_000 // 8)
    assert rig.matched(20_000) == 5_000


def test_what_is_unreadable_is_counted_whatever_its_size() -> None:
    rig = Rig()
    good = msgspec.to_builtins(stored(1, 2))
    rig.intake.add([b"\xff", b"\xff" * 100_000, packed(good, {"type": "x" * 60_000})])
    rig.enter_all()
    assert (rig.intake.track.num_skipped, rig.matched(2)) == (3, 2)


def test_what_is_skipped_of_a_batch_that_is_cut_counts_once() -> None:
    rig = Rig()
    events = [msgspec.to_builtins(stored(at, 64)) for at in range(1, 641, 64)]
    rig.intake.add([packed(*events, {"type": "Unknown"}, {"type": "Other"})])
    assert rig.enter_all() > 2
    assert rig.intake.track.num_skipped == 2


def test_a_wipe_takes_what_waits_as_well() -> None:
    rig = Rig()
    rig.intake.add([packed(stored(1, 3))])
    rig.enter_all()
    rig.intake.add([packed(stored(4, 1, 3))])
    rig.intake.wipe()
    assert (len(rig.intake), rig.matched(4)) == (0, 0)


@given(
    st.lists(st.integers(1, 5), max_size=8),
    st.sampled_from([None, 0, 7]),
    st.floats(0, 2e9),
    st.sampled_from([0, 300, 1000]),
)
def test_the_pieces_of_a_batch_say_what_it_says(
    counts: list[int], rank: int | None, time: float, most_bytes: int
) -> None:
    events = [stored(10 * at, count) for at, count in enumerate(counts)]
    payload = msgspec.msgpack.encode([time, events, rank])
    pieces = [decode(one) for one in cut(payload, most_bytes)]
    assert all(len(one.events) == 1 for one in pieces) or most_bytes
    assert [event for one in pieces for event in one.events] == events
    assert {(one.timestamp, one.dp_rank) for one in pieces} <= {(time, rank)}


def test_no_batch_is_left_as_it_is() -> None:
    assert cut(b"\xc1") == [b"\xc1"]


class Digger:
    """Work that takes one tick of a clock a step."""

    def __init__(self, name: str, steps: int, diary: "Diary") -> None:
        self.name = name
        self.steps = steps
        self.diary = diary

    def work(self, until: float) -> bool:
        while self.steps:
            self.steps -= 1
            self.diary.append(self.name)
            self.diary.now += 0.0004
            if self.diary.now > until:
                break
        return self.steps > 0


class Diary(deque[str]):
    """What happened, on a clock that only work moves."""

    now = 0.0


async def test_streams_take_turns_and_requests_run_in_between() -> None:
    diary = Diary()
    turns = Turns(clock=lambda: diary.now)
    a, b = Digger("a", 6, diary), Digger("b", 2, diary)
    for one in (a, b, a):
        turns.ask(one)
    while a.steps or b.steps:
        diary.append("request")
        await asyncio.sleep(0)
    text = " ".join(diary)
    assert text == "request a a a request b b a request a a"


async def test_what_hurries_has_the_rest_of_a_turn_and_no_more() -> None:
    """At once where the loop has time; a flood waits for requests as ever."""
    diary = Diary()
    turns = Turns(clock=lambda: diary.now)
    turns.hurry()
    for name, steps in (("a", 1), ("b", 1), ("c", 5)):
        turns.ask(Digger(name, steps, diary))
        turns.hurry()
        diary.append("|")
    turns.ask(Digger("d", 1, diary))
    turns.hurry()
    for _ in range(3):
        diary.append("request")
        await asyncio.sleep(0)
    text = "a | b | c | request c c c request d c request"
    assert " ".join(diary) == text
    turns.ask(Digger("e", 1, diary))
    turns.hurry()
    assert diary[-1] == "e"


async def test_work_that_asks_for_more_is_not_begun_within_itself() -> None:
    diary = Diary()
    turns = Turns(clock=lambda: diary.now)

    class Asker(Digger):
        def work(self, until: float) -> bool:
            diary.append("begin")
            turns.ask(Digger("other", 1, diary))
            turns.hurry()
            diary.append("end")
            return False

    turns.ask(Asker("asker", 1, diary))
    turns.hurry()
    assert list(diary) == ["begin", "end", "other"]


async def test_who_leaves_does_no_more_work() -> None:
    diary = Diary()
    turns = Turns(clock=lambda: diary.now)
    for one in (a := Digger("a", 9, diary), Digger("b", 1, diary)):
        turns.ask(one)
    turns.leave(a)
    await asyncio.sleep(0)
    assert list(diary) == ["b"]
    assert repr(turns) == "<Turns [0 waiting]>"


@pytest.mark.parametrize("count", [1, 3])
def test_a_part_of_blocks_hangs_behind_the_one_before(count: int) -> None:
    whole = stored(5, 6, 4)
    parts = [whole.part(at, at + count) for at in range(0, 6, count)]
    assert [one.parent_block_hash for one in parts] == list(range(4, 10, count))
    assert all(one.is_sound for one in parts)
    assert all(len(one.extra_keys or ()) == count for one in parts)


async def test_a_stream_that_what_it_enters_has_stopped_enters_no_more() -> None:
    """What waited would go to a backend that is mirrored, or is another one by then."""
    index = PrefixIndex()
    tiers = {one: index.add_holder("a", one) for one in ("gpu", "host", "disk")}
    stopped_at: list[int] = []

    def stop() -> None:
        stopped_at.append(index.blocks(tiers["gpu"]))
        stream.stop()

    async def replay(address: str, first: int) -> AsyncIterator[tuple[int, bytes]]:
        raise AssertionError("nothing is missing")
        yield 0, b""

    track = Track(index, tiers, lambda *_: 1, lambda _: None, stop)
    turns, address = Turns(), EventAddress("tcp://127.0.0.1:9")
    stream = Stream("a", address, track, replay, None, float, turns=turns)
    blocks = [stored(at, 1) for at in range(1, 1_001)]
    stream.received(0, packed(Removed([5_000], "GPU"), *blocks))
    for _ in range(1_000):  # turns of the loop; all would be entered in a few
        await asyncio.sleep(0)

    assert len(stopped_at) == 1
    assert index.blocks(tiers["gpu"]) == stopped_at[0] < 100
    assert not stream.is_catching_up
