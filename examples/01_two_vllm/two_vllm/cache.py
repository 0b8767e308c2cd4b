"""What examples and tests make once and keep: environments of engines, and models.

Each is a folder in ``$WARMROUTE_CACHE``, which defaults to ``warmroute`` in the user's
cache folder. A virtual environment cannot be renamed, so a folder is made in place, and
counts only once its ``.ready`` file is there. A half-made one is removed and made anew.
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
    """Return the folder for all that is kept between runs."""
    chosen = os.environ.get("WARMROUTE_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "warmroute"


def python_folder(name: str) -> Path:
    """Return where an environment for this release of Python is or will be."""
    major, minor = sys.version_info[:2]
    return cache_folder() / f"{name}-py{major}.{minor}"


def ensure_made(folder: Path, make: Callable[[Path, Path], None]) -> Path:
    """Return *folder*, made when missing; two makers at once wait for each other.

    Args:
        folder: A folder of the cache.
        make: Makes it, and writes a log; is given both paths.

    Raises:
        DemoError: it could not be made.
    """
    if is_ready(folder):
        return folder
    _make_parents(folder.parent)
    with _locked(folder):
        if not is_ready(folder):
            log = folder.with_name(f"{folder.name}.log")
            log.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            make(folder, log)
            mark_ready(folder)
    return folder


def is_ready(folder: Path) -> bool:
    """Tell whether *folder* was made to its end."""
    return (folder / ".ready").exists()


def mark_ready(folder: Path) -> None:
    """Record that *folder* was made to its end."""
    (folder / ".ready").write_text(f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n")


def _make_parents(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(
            f"cannot make the cache folder {folder}: {error.strerror}; "
            "set WARMROUTE_CACHE to a folder that can be written"
        ) from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process is making {folder}, waiting", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
