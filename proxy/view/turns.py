"""Who may use the event loop next: streams of events take turns, and are short."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

SLICE_S = 0.001


class Worker(Protocol):
    """Somebody with work that can be interrupted."""

    def work(self, until: float) -> bool:
        """Work until a time, or a little longer; tell whether something is left."""
        ...


class Turns:
    """Give all streams together one millisecond of the loop, then let others run.

    Requests are served between two slices, so that a flood of events delays each by
    about one slice, however many engines it comes from. What comes while the loop has
    time for it is not kept waiting: `hurry` does it at once.

    Args:
        clock: Monotonic seconds.
    """

    __slots__ = ("_clock", "_handle", "_is_working", "_left_s", "_waiting")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: deque[Worker] = deque()
        self._handle: asyncio.Handle | None = None
        self._is_working = False
        self._left_s = 0.0

    def __repr__(self) -> str:
        return f"<Turns [{len(self._waiting)} waiting]>"

    def ask(self, worker: Worker) -> None:
        """Let *worker* work soon; asking twice does no harm."""
        if worker not in self._waiting:
            self._waiting.append(worker)
        if self._handle is None:
            self._begin()

    def hurry(self) -> None:
        """Do now what this turn of the loop has time for, before anything else runs."""
        if self._waiting and self._left_s > 0.0 and not self._is_working:
            self._work()

    def leave(self, worker: Worker) -> None:
        """Let *worker* work no more."""
        if worker in self._waiting:
            self._waiting.remove(worker)

    def _begin(self) -> None:
        """Have a slice for what is left of this turn of the loop, and one more."""
        self._handle = asyncio.get_running_loop().call_soon(self._run)
        self._left_s = SLICE_S

    def _run(self) -> None:
        self._handle = None
        if self._waiting:
            self._begin()
            self._work()

    def _work(self) -> None:
        waiting, began = self._waiting, self._clock()
        until = began + self._left_s
        self._is_working = True
        try:
            while waiting:
                worker = waiting.popleft()
                if worker.work(until):
                    self.ask(worker)
                if self._clock() >= until:
                    break
        finally:
            self._is_working = False
            self._left_s -= self._clock() - began
