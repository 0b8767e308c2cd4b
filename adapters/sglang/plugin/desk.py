"""KV control inside one scheduler: what its loop turns to between two steps."""

import logging
from typing import Any, cast

from warmroute.adapters.kv_plugin.jobs import Answer
from warmroute.adapters.kv_plugin.verbs import Arguments, DeafControl, VerbCalls
from warmroute.adapters.sglang.plugin.link import SchedulerSocket
from warmroute.adapters.sglang.plugin.pins import Pins
from warmroute.adapters.sglang.plugin.publishing import Publishing
from warmroute.adapters.sglang.plugin.verbs import Verbs

logger = logging.getLogger("sglang.warmroute")


class TreeControl:
    """Answer the calls of the door about one scheduler.

    Args:
        verbs: What may be asked for.
        pins: Are let go when they are due.
        publishing: Publishes what a call changed before it is answered.
    """

    __slots__ = ("_calls", "_pins")

    def __init__(self, verbs: Verbs, pins: Pins, publishing: Publishing) -> None:
        self._calls = VerbCalls(verbs, publishing.announce)
        self._pins = pins

    def __repr__(self) -> str:
        return f"<TreeControl {self._calls!r}>"

    def expire(self) -> None:
        """Let go of what is due."""
        self._pins.expire()

    def call(self, ticket: int, verb: str, arguments: Arguments) -> Answer:
        """Begin a verb, or go on with one whose *verb* is empty.

        Parts that say nothing are not sent: they only let the engine step.
        """
        answer = self._calls.answer(ticket, verb, arguments)
        if "parts" in answer:
            answer["parts"] = [*filter(None, cast(list[object], answer["parts"]))]
        return answer


class Desk:
    """Serve calls in one turn of a scheduler's loop.

    Whatever goes wrong is logged, and the engine runs on.

    Args:
        control: Performs them.
        path: Socket that they come by; None where another rank has it.
        sleeper: What puts an idle scheduler to sleep, if anything does.
    """

    __slots__ = ("_control", "_socket")

    def __init__(
        self, control: TreeControl | DeafControl, path: str | None, sleeper: Any
    ) -> None:
        self._control = control
        self._socket = None if path is None else SchedulerSocket(path, control.call)
        if self._socket is not None and sleeper is not None:
            self._socket.wake(sleeper)

    def __repr__(self) -> str:
        return f"<Desk {self._control!r}>"

    def turn(self) -> None:
        """Let go of what is due, and answer one call."""
        if self._socket is None:
            return
        try:
            if isinstance(self._control, TreeControl):
                self._control.expire()
            self._socket.serve()
        except Exception:
            logger.exception("warmroute: KV control is off from now on")
            self.close()

    def close(self) -> None:
        """Serve nobody from now on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
