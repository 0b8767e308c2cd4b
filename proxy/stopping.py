"""The end of the process: asked for once, it drains; asked twice, it hurries."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any

from warmroute.proxy.config import DrainConfig
from warmroute.proxy.port import DataPort

logger = logging.getLogger(__name__)


class Stopping:
    """Know whether the end was asked for, and lead the data port to it."""

    __slots__ = ("_asked", "_hurried")

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._hurried = asyncio.Event()

    def __repr__(self) -> str:
        state = "hurried" if self.is_hurried else "asked"
        return f"<Stopping {state if self._asked.is_set() else 'not asked'}>"

    @property
    def is_hurried(self) -> bool:
        """Whether the end was asked for twice."""
        return self._hurried.is_set()

    def ask(self) -> None:
        """Ask for the end; for signal handlers."""
        if self._asked.is_set():
            self._hurried.set()
        self._asked.set()

    async def asked(self) -> None:
        """Wait until the end is asked for."""
        await self._asked.wait()

    async def drain(self, port: DataPort, config: DrainConfig) -> None:
        """Return once no client is left, time is over, or there is no time."""
        port.own.is_draining = True
        logger.info(
            "drain_started",
            extra={"delay_s": config.delay_s, "at_most": config.timeout_s},
        )
        # Load balancers learn of the end later than we do: go on accepting.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(config.delay_s):
                await self._hurried.wait()
        if not self.is_hurried:
            port.refuse_new()
            await self._unless_hurried(port.drained(config.timeout_s))

    async def _unless_hurried(self, waiting: Coroutine[Any, Any, object]) -> None:
        tasks: list[asyncio.Task[object]] = [
            asyncio.create_task(waiting),
            asyncio.create_task(self._hurried.wait()),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
