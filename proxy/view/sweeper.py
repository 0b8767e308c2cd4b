"""Who frees what backends have left behind in the index."""

import asyncio
import time
from collections.abc import Callable

from warmroute.policies.kv.radix import PrefixIndex

SLICE_S = 0.001

_STEP_BLOCKS = 512


class Sweeper:
    """Free it a millisecond at a time, with as long for others in between.

    Without an event loop, nobody waits, and all goes at once.

    Args:
        index: What is to be swept.
        clock: Monotonic seconds.
    """

    __slots__ = ("_clock", "_index", "_is_sweeping")

    def __init__(
        self, index: PrefixIndex, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._index = index
        self._clock = clock
        self._is_sweeping = False

    def __repr__(self) -> str:
        return f"<Sweeper [sweeping: {self._is_sweeping}]>"

    def start(self) -> None:
        """Begin, where something is left; safe to call again."""
        if self._is_sweeping or not self._index.has_left:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            while self._index.sweep(_STEP_BLOCKS):
                pass
            return
        self._is_sweeping = True
        loop.call_later(SLICE_S, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        until = self._clock() + SLICE_S
        while self._index.sweep(_STEP_BLOCKS):
            if self._clock() > until:
                loop.call_later(SLICE_S, self._sweep, loop)
                return
        self._is_sweeping = False
