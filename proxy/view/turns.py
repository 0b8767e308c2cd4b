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
    about one slice, however many engines it comes from.

    Args:
        clock: Monotonic seconds.
    """

    __slots__ = ("_clock", "_handle", "_waiting")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: deque[Worker] = deque()
        self._handle: asyncio.Handle | None = None

    def __repr__(self) -> str:
        return f"<Turns [{len(self._waiting)} waiting]>"

    def ask(self, worker: Worker) -> None:
        """Let *worker* work soon; asking twice does no harm."""
        if worker not in self._waiting:
            self._waiting.append(worker)
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._run)

    def leave(self, worker: Worker) -> None:
        """Let *worker* work no more."""
        if worker in self._waiting:
            self._waiting.remove(worker)

    def _run(self) -> None:
        self._handle = None
        waiting, until = self._waiting, self._clock() + SLICE_S
        while waiting:
            worker = waiting.popleft()
            if worker.work(until):
                self.ask(worker)
            if self._clock() >= until:
                break
        if waiting and self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._run)
