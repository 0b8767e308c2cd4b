"""Threads that tokenize, behind a bounded queue."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

from warmroute.adapters.tokens.errors import NotExact

NUM_THREADS = 2
MAX_JOBS = 256
MAX_BYTES = 128 << 20

T = TypeVar("T")


class Busy(NotExact):
    """Too much waits to be tokenized already."""


class Workers:
    """Run functions off the loop; what does not fit into the bounds is refused.

    A job that nobody awaits any more is dropped if it has not begun; one that has
    goes on, and what it found stays in the memo.
    """

    __slots__ = ("_executor", "_lock", "num_bytes", "num_jobs")

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(NUM_THREADS, "tokenize")
        self._lock = Lock()
        self.num_jobs = 0
        self.num_bytes = 0

    def __repr__(self) -> str:
        return f"<Workers [{self.num_jobs} jobs, {self.num_bytes} bytes]>"

    async def run(self, num_bytes: int, job: Callable[[], T]) -> T:
        """Return what *job* returns.

        Args:
            num_bytes: What it works on, for the bound on all that waits.
            job: Called in a thread.

        Raises:
            Busy: The queue is full.
        """
        with self._lock:
            if self.num_jobs >= MAX_JOBS or self.num_bytes + num_bytes > MAX_BYTES:
                raise Busy("too much is being tokenized")
            self.num_jobs += 1
            self.num_bytes += num_bytes

        def leave(_: Future[T]) -> None:
            with self._lock:
                self.num_jobs -= 1
                self.num_bytes -= num_bytes

        future = self._executor.submit(job)
        future.add_done_callback(leave)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Drop what has not begun; do not wait for the rest."""
        self._executor.shutdown(wait=False, cancel_futures=True)
