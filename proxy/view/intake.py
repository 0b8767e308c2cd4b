"""What one publisher has sent, in order, on its way into the index."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from warmroute.adapters.kv_events.wire import (
    Batch,
    Cleared,
    Event,
    Stored,
    cut,
    decode,
)
from warmroute.policies.errors import ProtocolMismatch
from warmroute.proxy.view.track import Track

Message = bytes | Batch | Iterator[Batch]
Piece = tuple[Message, bool]

_SMALL_BYTES: Final = 1 << 8
_LARGE_BYTES: Final = 64 << 10
_PIECE_BYTES: Final = 16 << 10
_PIECE_COST: Final = 144
_EVENT_COST: Final = 4
_REMOVED_COST: Final = 16
_MAX_STORED: Final = 512
_MAX_REMOVED: Final = 8
_MAX_LAG_S: Final = 1e6


class Intake:
    """Messages that are next, entered a piece at a time.

    A piece holds the event loop for well below a millisecond: a large batch is read
    some events at a time, any but a small one is entered a few at a time, and a long
    event some blocks at a time.

    Args:
        track: Where the blocks go.
        stamp: Returns a stamp that is greater than all before.
        wall: Seconds of the wall clock.

    Attributes:
        lag_s: Age of the newest live batch when it was entered; None before the first.
    """

    __slots__ = ("_pieces", "_stamp", "_wall", "lag_s", "track")

    def __init__(
        self,
        track: Track,
        stamp: Callable[[], float],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.track = track
        self._stamp = stamp
        self._wall = wall
        self._pieces: deque[Piece] = deque()
        self.lag_s: float | None = None

    def __repr__(self) -> str:
        return f"<Intake [{len(self._pieces)} pieces]>"

    def __len__(self) -> int:
        return len(self._pieces)

    def add(self, messages: Iterable[Message], is_live: bool = True) -> None:
        """Take what is next; nothing is entered yet.

        What is not live was sent again: its age says nothing about its way here.
        """
        self._pieces.extend((one, is_live) for one in messages)

    def wipe(self) -> None:
        """Forget what waits, and all that was entered."""
        self.drop()
        self.track.wipe(self._stamp())

    def drop(self) -> None:
        """Forget what waits."""
        self._pieces.clear()

    def enter(self) -> None:
        """Enter the next piece."""
        message, is_live = self._pieces.popleft()
        if isinstance(message, bytes):
            self._enter_bytes(message, is_live)
        elif isinstance(message, Batch):
            self.track.apply(message, self._stamp())
        elif (batch := next(message, None)) is not None:
            self.track.apply(batch, self._stamp())
            self._pieces.appendleft((message, is_live))

    def _enter_bytes(self, message: bytes, is_live: bool) -> None:
        # To cut costs a quarter of what to read does, so that few are cut.
        if len(message) > _LARGE_BYTES:
            pieces = cut(message, _PIECE_BYTES)
            if len(pieces) > 1:
                self._pieces.extendleft((one, is_live) for one in reversed(pieces))
                return
        try:
            batch = decode(message)
        except ProtocolMismatch:
            self.track.num_skipped += 1
            return
        if is_live and batch.timestamp:
            self.lag_s = min(max(0.0, self._wall() - batch.timestamp), _MAX_LAG_S)
        parts = list(_short(batch)) if len(message) > _SMALL_BYTES else [batch]
        if len(parts) > 1:
            self._pieces.extendleft((one, is_live) for one in reversed(parts))
        else:
            self.track.apply(batch, self._stamp())


def _short(batch: Batch) -> Iterator[Batch]:
    """Cut a batch into short ones: of few events, and parts of long ones.

    The cost of a piece is counted in blocks that are stored. One that is removed may
    lie anywhere, and the run that it is part of may have to be split.
    """
    some: list[Event] = []
    room = _PIECE_COST
    for event in batch.events:
        for part, cost in _parts(event):
            if cost > room and some:
                yield Batch(batch.timestamp, some, batch.dp_rank)
                some, room = [], _PIECE_COST
            some.append(part)
            room -= cost
    yield Batch(batch.timestamp, some, batch.dp_rank, batch.num_skipped)


def _parts(event: Event) -> Iterator[tuple[Event, int]]:
    """Cut a long event; yield each part with what it costs."""
    if isinstance(event, Cleared):
        yield event, _EVENT_COST
        return
    is_stored = isinstance(event, Stored)
    most, cost = (_MAX_STORED, 1) if is_stored else (_MAX_REMOVED, _REMOVED_COST)
    num_blocks = len(event.block_hashes)
    if num_blocks <= most:
        yield event, _EVENT_COST + num_blocks * cost
        return
    for first in range(0, num_blocks, most):
        part = event.part(first, first + most)
        yield part, _EVENT_COST + len(part.block_hashes) * cost
