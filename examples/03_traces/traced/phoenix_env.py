"""Make the environment that holds Arize Phoenix.

It lives beside that of vLLM, outside the checkout, and is made once. Phoenix has the
Elastic License 2.0: it is run here to look at traces, and is no part of warmroute.
"""

import shutil
import sys
from pathlib import Path

from two_vllm.command import run_logged
from two_vllm.environment import cache_folder, is_ready, locked, make_folder, mark_ready

from warmroute.proxy.demo.progress import Step

PHOENIX_VERSION = "20.26.1"


def phoenix_folder() -> Path:
    """Return where the environment is or will be."""
    major, minor = sys.version_info[:2]
    return cache_folder() / f"phoenix-{PHOENIX_VERSION}-py{major}.{minor}"


def ensure_phoenix() -> Path:
    """Return the folder of a working environment, made when missing.

    Takes a minute or two and about 0.9 GB the first time. Two makers at once are
    safe: the second waits for the first.

    Raises:
        DemoError: it could not be made; says why and where the log is.
    """
    folder = phoenix_folder()
    if is_ready(folder):
        return folder
    make_folder(folder.parent)
    with locked(folder):
        if not is_ready(folder):
            _build(folder)
    return folder


def _build(folder: Path) -> None:
    log = folder.with_name(f"{folder.name}.log")
    log.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    python = folder / "bin" / "python"
    package = f"arize-phoenix=={PHOENIX_VERSION}"
    print(f"making {folder} (once, about 0.9 GB, log: {log})", file=sys.stderr)
    with Step(f"  Phoenix {PHOENIX_VERSION}") as step:
        run_logged([sys.executable, "-m", "venv", folder], log, step)
        run_logged([python, "-m", "pip", "--no-input", "install", package], log, step)
        run_logged([python, "-c", "import phoenix.server.main"], log, step)
    mark_ready(folder)
