"""The end of the process: asked once, it drains; twice, it hurries."""

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Know whether the end was asked for, and how urgently."""

    __slots__ = ("_asked", "_hurried")

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._hurried = asyncio.Event()

    def __repr__(self) -> str:
        if self.is_hurried:
            return "<Stopping hurried>"
        return f"<Stopping {'asked' if self._asked.is_set() else 'not asked'}>"

    @property
    def is_hurried(self) -> bool:
        """Whether the end was asked for twice."""
        return self._hurried.is_set()

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM ask for the end."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.ask)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def ask(self) -> None:
        """Ask for the end; the second time, ask to hurry."""
        if self._asked.is_set():
            self._hurried.set()
        self._asked.set()

    async def asked(self) -> None:
        """Wait until the end is asked for."""
        await self._asked.wait()

    async def unless_hurried(self, waiting: Coroutine[Any, Any, object]) -> None:
        """Wait for *waiting*, or until the end is urgent."""
        tasks: list[asyncio.Task[object]] = [
            asyncio.create_task(waiting),
            asyncio.create_task(self._hurried.wait()),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
