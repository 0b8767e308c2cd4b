"""Has the engine let go of retained blocks when they are due."""

import asyncio
import contextlib
import logging
from typing import cast

from warmroute.adapters.kv_plugin.calls import CoreCalls
from warmroute.policies.errors import ClientError

logger = logging.getLogger(__name__)

_GRACE_S = 0.02
_RETRY_S = 5.0


class ExpiryTimer:
    """Call the engine when a retention ends, and not before.

    An idle engine runs no steps, so the API server's event loop keeps the time. While
    nothing is retained there is no timer.

    Args:
        calls: Reach the engine.
    """

    __slots__ = ("_calls", "_task", "_wake")

    def __init__(self, calls: CoreCalls) -> None:
        self._calls = calls
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    def __repr__(self) -> str:
        return f"<ExpiryTimer {'waits' if self._task else 'rests'}>"

    def look_again(self) -> None:
        """Ask the engine anew what is due next."""
        self._wake.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        try:
            pause_s: float | None = 0.0
            # Woken while the engine was asked, its answer may be older than what is
            # retained: it is asked again, even if nothing was due.
            while pause_s is not None or self._wake.is_set():
                pause_s = await self._due_s()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s or 0.0):
                        await self._wake.wait()
        finally:
            self._task = None

    async def _due_s(self) -> float | None:
        self._wake.clear()
        try:
            parts = await self._calls.run("expire")
        except ClientError as error:
            logger.warning("warmroute: retained blocks are held on: %s", error)
            return _RETRY_S
        due_s = cast(float | None, parts[-1]["due_s"])
        return None if due_s is None else due_s + _GRACE_S
