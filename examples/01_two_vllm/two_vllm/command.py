"""Run a long command with its output in a log file."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from warmroute.proxy.demo.child import log_tail
from warmroute.proxy.demo.errors import DemoError
from warmroute.proxy.demo.progress import Step


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
        DemoError: the command failed; names the log and quotes its end.
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
        raise DemoError(
            f"{name} {args[1]} failed with exit code {process.returncode}, "
            f"its log is {log} and ends with:\n{log_tail(log)}"
        )


def _wait(process: subprocess.Popen[bytes], step: Step) -> None:
    while True:
        try:
            process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            step.tick()
        else:
            return
