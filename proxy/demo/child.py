"""A server run as a child process, with its output in a log file."""

import asyncio
import contextlib
import ctypes
import os
import random
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from warmroute.proxy.demo.errors import DemoError

_TAIL_LINES = 8
_PR_SET_PDEATHSIG = 1  # prctl(2)
_SERVERS_PORTS = (20_000, 32_000)
_TRIES = 50
_given: set[int] = set()


class Child:
    """One child process in its own group, so that its children end with it.

    On Linux it ends when its parent does, even one that was killed.

    Args:
        name: What it is called in messages.
        log: Where its output is appended.
        patience_s: How long it may take to start.
        grace_s: How long it may take to stop before it is killed.
    """

    __slots__ = ("_grace_s", "_patience_s", "_process", "log", "name")

    def __init__(
        self, name: str, log: Path, patience_s: float = 30.0, grace_s: float = 10.0
    ) -> None:
        self.name = name
        self.log = log
        self._patience_s = patience_s
        self._grace_s = grace_s
        self._process: Process | None = None

    def __repr__(self) -> str:
        pid = self._process.pid if self._process else None
        return f"<Child {self.name} pid={pid}>"

    async def start(
        self, arguments: Sequence[str], environ: Mapping[str, str] | None = None
    ) -> None:
        """Launch the process; does not wait until it serves."""
        with self.log.open("ab") as sink:
            self._process = await asyncio.create_subprocess_exec(
                *arguments,
                stdin=DEVNULL,
                stdout=sink,
                stderr=sink,
                env=os.environ if environ is None else environ,
                start_new_session=True,
                preexec_fn=_tied_to(os.getpid()),
            )

    async def ready(
        self,
        is_ready: Callable[[], Awaitable[bool]],
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait until *is_ready* says so, calling *tick* meanwhile.

        Raises:
            DemoError: It ended or took too long; quotes its log's end.
        """
        deadline = time.monotonic() + self._patience_s
        while not await is_ready():
            if self._process is None or self._process.returncode is not None:
                raise DemoError(self._failure("ended while starting"))
            if time.monotonic() > deadline:
                raise DemoError(self._failure(f"not ready in {self._patience_s:.0f} s"))
            tick()
            await asyncio.sleep(0.1)

    def kill(self) -> None:
        """End the process and all its children at once."""
        if self._process is not None:
            _signal_group(self._process.pid, signal.SIGKILL)

    async def stop(self) -> int | None:
        """End it politely, then for sure; returns its exit code.

        Safe to call again: the second call returns None.
        """
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            if process.returncode is None:
                _signal_group(process.pid, signal.SIGTERM)
            async with asyncio.timeout(self._grace_s):
                await process.wait()
        except TimeoutError:
            pass
        finally:
            _signal_group(process.pid, signal.SIGKILL)
        return await process.wait()

    def _failure(self, what: str) -> str:
        return (
            f"{self.name} {what}; its log is {self.log} and ends with:\n"
            f"{log_tail(self.log)}"
        )


def log_tail(log: Path) -> str:
    """Return the last few lines of *log*, indented."""
    if not log.exists():
        return "  (nothing)"
    lines = log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
    return "\n".join(f"  {line[:300]}" for line in lines) or "  (nothing)"


def free_port(wanted: int = 0) -> int:
    """Return a loopback port that is free right now: *wanted*, else another.

    It is below those from which connections are made. Where nobody listens yet, an
    engine that tries again and again to connect could be given the very port that it
    calls, be connected with itself, and keep the listener out for good.

    No port of those is given twice: an engine may listen a minute after it got one.
    """
    drawn = (random.randrange(*_SERVERS_PORTS) for _ in range(_TRIES))
    chances = [port for port in drawn if port not in _given]
    for port in (*filter(None, [wanted]), *chances, 0):
        with socket.socket() as probe:
            # As servers do, so that connections which have ended are in nobody's way.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found = int(probe.getsockname()[1])
                _given.add(found)
                return found
    raise DemoError("no free port on 127.0.0.1")


def _tied_to(parent: int) -> Callable[[], None] | None:
    """Return what makes a child get SIGTERM when *parent* is gone; runs in it.

    The library is loaded before the fork: after it, as little as possible runs.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it went in between
            os._exit(1)

    return tie


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return
