"""Which prompts are looked at, and when."""

import asyncio

import pytest

from warmroute.policies.killers.detector import KillerDetector
from warmroute.proxy import killer_watch as watch_module
from warmroute.proxy.killer_watch import MAX_QUEUED, KillerWatch
from warmroute.proxy.prompt.prompt import Piece, Prompt


def prompt(number: int = 0, kind: str = "chat", size: int = 2000) -> Prompt:
    text = f"Request {number:08}. ".encode() + b"The same each time. So it is. " * 99
    return Prompt(kind, pieces=(Piece(9, 7, None, text[:size]),))


async def test_prompts_are_taken_while_there_is_room() -> None:
    """Full, it takes no more until one was looked at."""
    watch = KillerWatch()
    for number in range(MAX_QUEUED):
        assert watch.has_room
        watch.see(prompt(number))
    assert not watch.has_room
    watch.look()
    assert watch.has_room
    watch.close()


async def test_what_has_no_shared_text_is_passed_over() -> None:
    """Short prompts, token ids, embeddings, and no prompt at all."""
    watch = KillerWatch()
    watch.see(prompt(size=100))
    watch.see(prompt(kind="embeddings"))
    watch.see(Prompt("chat", pieces=(Piece(9, 7, None, None),)))
    watch.see(Prompt())
    assert "queued=0" in repr(watch)
    watch.close()


async def test_each_is_looked_at_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """One a tick, until none is left; then no timer runs."""
    monkeypatch.setattr(watch_module, "EVERY_S", 0.0)
    looked: list[tuple[float, int]] = []
    done = asyncio.Event()

    def observe(
        self: object, text: bytes, root: int, rate: float, now: float, weight: int
    ) -> None:
        looked.append((now, weight))
        if len(looked) == 3:
            done.set()

    monkeypatch.setattr(KillerDetector, "observe", observe)
    watch = KillerWatch(lambda: 5.0)
    watch.see(prompt(1))
    watch.num_passed = 41
    watch.see(prompt(2))
    watch.see(prompt(3))
    await asyncio.wait_for(done.wait(), 10)
    assert looked == [(5.0, 1), (5.0, 42), (5.0, 1)]
    watch.close()


async def test_a_fault_ends_the_watch_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once, without the text."""
    watch = KillerWatch()

    def fail(*args: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(KillerDetector, "observe", fail)
    watch.see(prompt())
    watch.see(prompt())
    watch._work()
    assert not watch.has_room
    assert caplog.messages == ["cache_killer_watch_failed"]
    assert "same each time" not in caplog.text


async def test_the_report_is_what_the_admin_port_shows() -> None:
    watch = KillerWatch(lambda: 100.0)
    for number in range(30):
        watch.see(prompt(number))
        watch.look()
    (shown,) = watch.report(16)
    assert list(shown) == [
        *("cluster", "first_block", "token_offset", "requests", "tokens_a_day"),
        *("kind", "example", "sentence"),
    ]
    assert (shown["kind"], shown["first_block"], shown["requests"]) == ("number", 0, 30)
    watch.close()
