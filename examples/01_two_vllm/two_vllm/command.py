"""Run a long command with its output in a log file."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from two_vllm.errors import ExampleError
from two_vllm.progress import Step

_TAIL_LINES = 8


def run_logged(
    args: Sequence[str | Path],
    log: Path,
    step: Step,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Run *args* to its end, appending what it prints to *log*.

    The command gets its own process group, and an interrupt of this
    process ends that whole group.

    Raises:
        ExampleError: the command failed; names the log and quotes its end.
    """
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [str(arg) for arg in args],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environ or {})},
            start_new_session=True,
        )
        try:
            _wait(process, step)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if process.returncode:
        name = Path(args[0]).name
        raise ExampleError(
            f"{name} {args[1]} failed with exit code {process.returncode}, "
            f"its log is {log} and ends with:\n{log_tail(log)}"
        )


def log_tail(log: Path) -> str:
    """Return the last few lines of *log*, indented."""
    if not log.exists():
        return "  (nothing)"
    lines = log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
    return "\n".join(f"  {line[:300]}" for line in lines) or "  (nothing)"


def _wait(process: subprocess.Popen[bytes], step: Step) -> None:
    while True:
        try:
            process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            step.tick()
        else:
            return
