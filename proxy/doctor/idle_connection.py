"""One connection that asks once, and then waits for the engine to close it."""

import asyncio
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from warmroute.proxy.fleet.target import Target

_PIECE_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Dated:
    """Pair the engine's time with ours, in seconds of the wall clock.

    Args:
        theirs: What the ``Date`` header says, in whole seconds.
        sent: When the request left.
        received: When the answer came.
    """

    theirs: float
    sent: float
    received: float

    @property
    def offset_s(self) -> float:
        """Seconds that their clock is ahead, as far as it must be; never too many."""
        if self.theirs > self.received:
            return self.theirs - self.received
        return min(0.0, self.theirs + 1 - self.sent)


class IdleConnection:
    """A connection of its own, past all pools.

    Attributes:
        date: What the answer says about time; None if it says nothing.
        says_close: Whether the engine announced that it will close.
    """

    __slots__ = ("_reader", "_writer", "date", "says_close")

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader = reader
        self._writer = writer
        self.date: Dated | None = None
        self.says_close = False

    def __repr__(self) -> str:
        return f"<IdleConnection says_close={self.says_close}>"

    @classmethod
    async def open(
        cls, target: Target, tls: ssl.SSLContext | None, timeout_s: float
    ) -> "IdleConnection":
        """Connect.

        Raises:
            OSError: It cannot be done; `TimeoutError` is one of them.
        """
        async with asyncio.timeout(timeout_s):
            return cls(
                *await asyncio.open_connection(target.host, target.port, ssl=tls)
            )

    async def ask(self, target: Target, fields: Mapping[str, str]) -> None:
        """Send ``GET /health`` and read the head of the answer, whatever it is.

        Raises:
            OSError: The connection broke.
            EOFError: It ended before the answer.
            LimitOverrunError: The head is longer than 64 KiB.
        """
        lines = [
            f"GET {target.path_prefix}/health HTTP/1.1",
            f"Host: {target.authority}",
        ]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        sent = time.time()
        self._writer.write("\r\n".join([*lines, "", ""]).encode())
        head = await self._reader.readuntil(b"\r\n\r\n")
        received = time.time()
        answered = _fields(head)
        self.says_close = "close" in answered.get("connection", "").lower()
        with suppress(ValueError):
            theirs = parsedate_to_datetime(answered.get("date", "")).timestamp()
            self.date = Dated(theirs, sent, received)

    async def closed_after(self, limit_s: float) -> float | None:
        """Return after how long the idle connection was closed; None if it was not.

        Args:
            limit_s: How long to wait.
        """
        last = time.monotonic()
        try:
            async with asyncio.timeout(limit_s):
                while await self._reader.read(_PIECE_BYTES):
                    last = time.monotonic()
        except TimeoutError:
            return None
        except OSError:
            pass
        return time.monotonic() - last

    def close(self) -> None:
        """Close it; safe to call again."""
        self._writer.transport.abort()


def _fields(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}
