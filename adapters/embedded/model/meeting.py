"""Where processes wait for one another many times a step."""

from collections.abc import Callable
from multiprocessing import get_context

_TRIES = 2_000
"""Looks, of 0.2 us, before a process sleeps; one that slept wakes 50 us too late."""

_CHECK_S = 0.1
"""Seconds between two checks whether the others are still there."""


class Meeting:
    """A barrier of semaphores.

    Each member opens the gate of each other one, and goes through its own as often as
    there are others. Who is a meeting ahead cannot open a gate in place of one who has
    not come: it got there by what that one opened.

    Args:
        size: Members.
    """

    __slots__ = ("_gates",)

    def __init__(self, size: int) -> None:
        context = get_context("fork")
        self._gates = [context.Semaphore(0) for _ in range(size)]

    def __repr__(self) -> str:
        return f"<Meeting of {len(self._gates)}>"

    def wait(self, rank: int, check: Callable[[], object]) -> None:
        """Wait for all members to come here.

        Args:
            rank: Who comes.
            check: Called now and then; raises when somebody will never come.
        """
        own = self._gates[rank]
        for gate in self._gates:
            if gate is not own:
                gate.release()
        for _ in range(len(self._gates) - 1):
            for _ in range(_TRIES):
                if own.acquire(False):
                    break
            else:
                while not own.acquire(True, _CHECK_S):
                    check()
