"""The compute thread: commands between the steps, outputs after each."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import NamedTuple

from warmroute.adapters.embedded.engine.core import EngineCore, Output

log = logging.getLogger(__name__)


class Command(NamedTuple):
    """Something to do between two steps, or to refuse when there are no more."""

    run: Callable[[], None]
    refuse: Callable[[str], None]


class Worker:
    """Run a core on a thread of its own, which sleeps while it is idle.

    Args:
        core: Used by the thread alone from `start` on.
        deliver: Called on the thread with the outputs of each step. Raises
            RuntimeError when nobody can take them any more, which ends the thread.
    """

    __slots__ = (
        "_commands",
        "_core",
        "_deliver",
        "_is_stopping",
        "_thread",
        "_wake",
        "failure",
    )

    def __init__(
        self, core: EngineCore, deliver: Callable[[list[Output]], None]
    ) -> None:
        self._core = core
        self._deliver = deliver
        self._commands: deque[Command] = deque()
        # Re-entrant, as the garbage collector may drop a stream while it is held.
        self._wake = Condition()
        self._is_stopping = False
        self._thread = Thread(target=self._run, name="warmroute-engine", daemon=True)
        self.failure: str | None = None

    def __repr__(self) -> str:
        state = self.failure or ("stopping" if self._is_stopping else "alive")
        return f"<Worker {state}: {len(self._commands)} commands>"

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def post(self, command: Command) -> None:
        """Have a command run before the next step; from any thread."""
        with self._wake:
            why = self._why_not
            if why is None:
                self._commands.append(command)
                self._wake.notify()
        if why is not None:
            command.refuse(why)

    def stop(self) -> None:
        """End the thread after the step that it is in; `join` waits for it."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()

    def join(self) -> None:
        """Wait for the thread to end."""
        self._thread.join()

    @property
    def _why_not(self) -> str | None:
        return self.failure or ("the engine is closed" if self._is_stopping else None)

    def _run(self) -> None:
        try:
            while self._wait():
                self._run_commands()
                self._core.step()
                self._deliver(self._core.take_outputs())
        except Exception as error:  # the last fence: nothing may hang for it
            self._die(f"the engine died: {type(error).__name__}: {error}")
        finally:
            self._refuse_commands()

    def _wait(self) -> bool:
        with self._wake:
            while not (self._is_stopping or self._commands) and self._core.is_idle:
                self._wake.wait()
            return not self._is_stopping

    def _run_commands(self) -> None:
        while self._commands:
            self._commands.popleft().run()

    def _die(self, why: str) -> None:
        log.exception("engine_died")
        with self._wake:
            self.failure = why
        try:
            self._deliver(self._core.fail_all(why))
        except RuntimeError:  # the loop is gone, and with it all who waited
            log.warning("engine_outputs_lost reason=loop_closed")

    def _refuse_commands(self) -> None:
        with self._wake:
            self._is_stopping = True
        while self._commands:
            self._commands.popleft().refuse(self.failure or "the engine is closed")
