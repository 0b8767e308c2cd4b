"""What is written in one turn of the event loop, sent together at its end."""

import asyncio
from collections.abc import Callable
from typing import Final

_MAX_HELD_BYTES: Final = 16384


def call_at_end_of_turn(function: Callable[[], None]) -> None:
    """Call *function* once everything that is ready has been handled."""
    asyncio.get_running_loop().call_soon(function)


class Outbox:
    """Hold small writes of all connections until the end of a turn.

    Waking a receiver costs a sender nearly as much as the rest of a small write.
    Those that follow at once find it still awake, or about to be.

    Args:
        schedule: Sees to it that `flush` is called.
    """

    __slots__ = ("_held", "_schedule")

    def __init__(
        self, schedule: Callable[[Callable[[], None]], None] = call_at_end_of_turn
    ) -> None:
        self._schedule = schedule
        self._held: list[tuple[asyncio.Transport, bytes]] = []

    def __repr__(self) -> str:
        return f"<Outbox {len(self._held)} held>"

    def write(self, transport: asyncio.Transport, data: bytes) -> None:
        """Send *data*, at once if it is large, in the order of the calls."""
        if len(data) > _MAX_HELD_BYTES:
            self.flush()
            transport.write(data)
            return
        held = self._held
        held.append((transport, data))
        if len(held) == 1:
            self._schedule(self.flush)

    def flush(self) -> None:
        """Send what is held; before a transport is closed, or read the size of."""
        held, self._held = self._held, []
        for transport, data in held:
            if not transport.is_closing():
                transport.write(data)
