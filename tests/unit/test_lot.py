"""Kept traces that wait to be written together."""

import asyncio
import threading
from typing import Any

import pytest
from unit.trace_rig import fake_tracer, play

from warmroute.proxy.telemetry.lot import Lot
from warmroute.proxy.telemetry.request_trace import RequestTrace

KIB = 1 << 10


class FakeWriter:
    """Write one span for a trace, and keep how many bytes were held at a time."""

    def __init__(self, span: bytes = b"s") -> None:
        self.bodies: list[int] = []
        self._span = span

    def __call__(self, trace: RequestTrace, kept: str, offset_ns: int) -> list[bytes]:
        self.bodies.append(len(trace.body))
        return [self._span]


def trace_with(body_bytes: int) -> RequestTrace:
    tracer, _ = fake_tracer()
    trace = play(tracer)
    trace.body = b"x" * body_bytes
    return trace


def test_it_is_written_when_it_is_full() -> None:
    """And then it takes nothing more."""
    writer = FakeWriter()
    lot = Lot(3, writer)
    added = [lot.add(trace_with(KIB), "ratio", 0) for _ in range(2)]
    assert writer.bodies == []
    added += [lot.add(trace_with(KIB), "ratio", 0) for _ in range(2)]
    assert added == [True, True, True, False]
    assert (lot.spans, lot.num_spans, len(writer.bodies)) == (b"sss", 3, 3)
    assert repr(lot) == "<Lot 0 unwritten, 3 spans>"


@pytest.mark.parametrize(("body_bytes", "at_once"), [(20 * KIB, 4), (1 << 20, 1)])
def test_long_bodies_are_written_early(body_bytes: int, at_once: int) -> None:
    """No more than 64 KiB and one body are read at a time; the lot goes on."""
    writer = FakeWriter()
    lot = Lot(16, writer)
    sizes = []
    for _ in range(2 * at_once):
        assert lot.add(trace_with(body_bytes), "ratio", 0)
        sizes.append(len(writer.bodies))
    assert sizes[at_once - 1 :: at_once] == [at_once, 2 * at_once]
    assert sizes[: at_once - 1] == [0] * (at_once - 1)


def test_long_spans_fill_it() -> None:
    """So that a post can be cut between lots."""
    lot = Lot(16, FakeWriter(b"s" * 100 * KIB))
    assert lot.add(trace_with(65 * KIB), "ratio", 0)
    assert lot.add(trace_with(65 * KIB), "ratio", 0)
    assert not lot.add(trace_with(65 * KIB), "ratio", 0)


def test_what_is_taken_is_written_and_closed() -> None:
    """A second taker gets the same."""
    lot = Lot(16, FakeWriter())
    assert lot.add(trace_with(KIB), "ratio", 0)
    lot.take()
    lot.take()
    assert not lot.add(trace_with(KIB), "ratio", 0)
    assert (lot.spans, lot.num_spans) == (b"s", 1)


async def test_who_adds_never_waits_for_who_takes() -> None:
    """The loop goes on with another lot while this one is written."""
    writing, may_end = threading.Event(), threading.Event()

    def write(*_: Any) -> list[bytes]:
        writing.set()
        may_end.wait()
        return [b"s"]

    lot = Lot(16, write)
    assert lot.add(trace_with(KIB), "ratio", 0)
    taking = asyncio.create_task(asyncio.to_thread(lot.take))
    await asyncio.to_thread(writing.wait)
    assert not lot.add(trace_with(KIB), "ratio", 0)
    may_end.set()
    await taking
    assert lot.num_spans == 1
