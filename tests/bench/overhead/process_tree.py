"""Run a program with its children pinned to a core, and weigh it."""

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

STOP_TIMEOUT_S = 5.0
PR_SET_PDEATHSIG = 1  # prctl(2)


def _parents() -> dict[int, int]:
    """Return the parent of each process of this machine."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may hold blanks: read behind it.
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        parents[int(stat.parent.name)] = int(fields[1])
    return parents


class ProcessTree:
    """One started program and everything it started."""

    __slots__ = ("_log", "_process", "log_path")

    def __init__(self, command: Sequence[str], core: int | None, log_path: Path):
        self.log_path = log_path
        self._log = log_path.open("wb")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: _settle(core),
        )

    @property
    def is_running(self) -> bool:
        """Tell whether the started program itself still runs."""
        return self._process.poll() is None

    def pids(self) -> list[int]:
        """Return the process ids of the tree, the root first."""
        parents = _parents()
        found = [self._process.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found

    def cpu_ns(self) -> int:
        """Return the CPU time of all living threads, in nanoseconds."""
        total = 0
        for pid in self.pids():
            for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                total += int(path.read_text().split()[0])
        return total

    def thread_ns(self) -> dict[int, int]:
        """Return the CPU time of each living thread of the root, in nanoseconds."""
        tasks = Path(f"/proc/{self._process.pid}/task")
        return {
            int(path.parent.name): int(path.read_text().split()[0])
            for path in tasks.glob("*/schedstat")
        }

    def rss_mib(self) -> float:
        """Return the resident memory of the tree, in MiB."""
        pages = sum(
            int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            for pid in self.pids()
        )
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def log_tail(self, num_lines: int = 1) -> str:
        """Return the last lines that the program printed."""
        lines = self.log_path.read_text(errors="replace").splitlines()
        return "\n".join(lines[-num_lines:])

    def stop(self) -> None:
        """End the tree: politely, then for sure."""
        self._signal(signal.SIGTERM)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
        finally:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._log.close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def _settle(core: int | None) -> None:
    """Prepare the child: on its core, and not to outlive this process."""
    pin(core)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def pin(core: int | None) -> None:
    """Keep the calling process on one core."""
    if core is not None:
        os.sched_setaffinity(0, {core})
