"""The loop of ``warmroute top``: ask, draw, wait for a key."""

import time
from collections.abc import Callable
from typing import Final, Protocol

from warmroute.policies.errors import WarmrouteError
from warmroute.proxy.console.answers import State
from warmroute.proxy.console.overview import num_paid_twice, overview
from warmroute.proxy.console.table import count, printable

EVERY_S: Final = 1.0

_MAX_MESSAGE: Final = 200


class Asked(Protocol):
    """The proxy."""

    def read(self, path: str, kind: type[State]) -> State:
        """Return the JSON at *path*."""
        ...


class Drawn(Protocol):
    """The terminal."""

    def draw(self, text: str) -> None:
        """Show *text*."""
        ...

    def key(self, timeout_s: float) -> str:
        """Return the key that is pressed within *timeout_s*, or nothing."""
        ...


class Watch:
    """Show a proxy every second until q is pressed.

    While it does not answer, the last page stays, with the reason above it.
    """

    __slots__ = ("_client", "_clock", "_last", "_rates", "_screen", "_taken_at")

    def __init__(
        self,
        client: Asked,
        screen: Drawn,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._screen = screen
        self._clock = clock
        self._last: State | None = None
        self._taken_at = 0.0
        self._rates = ""

    def __repr__(self) -> str:
        return f"<Watch {self._client!r}>"

    def run(self, state: State) -> None:
        """Watch, beginning with *state*; returns when q was pressed."""
        self._take(state)
        notice = ""
        while True:
            self._screen.draw(self._page(notice))
            if "q" in self._screen.key(EVERY_S).lower():
                return
            try:
                self._take(self._client.read("/api/state", State))
                notice = ""
            except WarmrouteError as error:
                notice = printable(str(error), _MAX_MESSAGE)

    def _take(self, state: State) -> None:
        now, last = self._clock(), self._last
        if last is not None and now > self._taken_at:
            self._rates = _rates(last, state, now - self._taken_at)
        self._last, self._taken_at = state, now

    def _page(self, notice: str) -> str:
        assert self._last is not None  # run takes one first
        head = f"not connected, trying again: {notice}" if notice else self._rates
        return f"{overview(self._last)}\n\n{head}\nq ends"


def _rates(before: State, after: State, elapsed_s: float) -> str:
    """Tell how fast tokens move; a proxy that started anew begins at zero."""
    prompt = after.tokens.get("prompt", 0) - before.tokens.get("prompt", 0)
    twice = num_paid_twice(after.tokens) - num_paid_twice(before.tokens)
    return (
        f"{count(round(max(0, prompt) / elapsed_s))} prompt tokens/s, of which "
        f"{count(round(max(0, twice) / elapsed_s))} paid twice"
    )
