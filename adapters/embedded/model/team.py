"""Threads that compute the shares of one step side by side."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Barrier, BrokenBarrierError, Lock
from typing import TypeVar

from threadpoolctl import ThreadpoolController

T = TypeVar("T")
Meet = Callable[[], object]
"""Wait until all shares have come so far."""

_blas = ThreadpoolController().select(user_api="blas")
_alone = Lock()
"""BLAS has one number of threads for the whole process."""


def blas_threads() -> int:
    """Return how many threads a product may take; 1 where BLAS does not tell."""
    with _alone:
        return max((each.num_threads for each in _blas.lib_controllers), default=1)


class Team:
    """As many threads as shares, each of which multiplies on its own.

    NumPy computes everything but products on one core. With the rows of a step cut
    into shares all of it runs on all cores, and BLAS needs no threads meanwhile.

    Args:
        size: Threads.
    """

    __slots__ = ("_pool", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._pool = ThreadPoolExecutor(size, "warmroute-share")

    def __repr__(self) -> str:
        return f"<Team of {self.size}>"

    def run(self, shares: Sequence[Callable[[Meet], T]]) -> list[T]:
        """Run all *shares*, at most *size* of them, and return their results.

        One call at a time in a process; others wait.

        Raises:
            Exception: What the first share that failed raised. The others end where
                they meet.
        """
        with _alone, _blas.limit(limits=1):
            barrier = Barrier(len(shares))
            futures = [self._pool.submit(_run, share, barrier) for share in shares]
            wait(futures)
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None and not isinstance(error, BrokenBarrierError):
                raise error
        return [future.result() for future in futures]


def _run(share: Callable[[Meet], T], barrier: Barrier) -> T:
    try:
        return share(barrier.wait)
    except BaseException:
        barrier.abort()
        raise
