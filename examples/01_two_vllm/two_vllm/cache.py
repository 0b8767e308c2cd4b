"""What the examples keep between runs, outside the checkout, each made once.

Virtual environments cannot be renamed, so a folder is made in place and counts only
once its ``.ready`` file is there; a half-made one is removed and made again.
"""

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from warmroute.proxy.demo.errors import DemoError


def cache_folder() -> Path:
    """Return the folder for all that the examples keep between runs."""
    chosen = os.environ.get("WARMROUTE_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "warmroute"


def python_folder(name: str, version: str) -> Path:
    """Return where the environment of this Python with one package in it belongs."""
    major, minor = sys.version_info[:2]
    return cache_folder() / f"{name}-{version}-py{major}.{minor}"


def make_once(folder: Path, make: Callable[[Path, Path], None]) -> Path:
    """Return *folder*, made when missing.

    Two makers at once are safe: the second waits for the first.

    Args:
        folder: In the cache folder.
        make: Given the folder, which is not there, and the log for what it runs.

    Raises:
        DemoError: the cache folder cannot be written, or *make* raised it.
    """
    if is_ready(folder):
        return folder
    _make_parents(folder)
    with _locked(folder):
        if not is_ready(folder):
            log = folder.with_name(f"{folder.name}.log")
            log.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            make(folder, log)
            (folder / ".ready").write_text(f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n")
    return folder


def is_ready(folder: Path) -> bool:
    """Return whether *folder* was made to its end."""
    return (folder / ".ready").exists()


def _make_parents(folder: Path) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(
            f"cannot make the cache folder {folder.parent}: {error.strerror}; "
            "set WARMROUTE_CACHE to a folder that can be written"
        ) from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of *folder*, waiting for another process's turn."""
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process is making {folder}, waiting", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
