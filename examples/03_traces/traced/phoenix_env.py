"""Make the environment that holds Arize Phoenix.

It lives beside that of vLLM, outside the checkout, and is made once. Phoenix has the
Elastic License 2.0: it is run here to look at traces, and is no part of warmroute.
"""

import sys
from pathlib import Path

from two_vllm.cache import ensure_made, python_folder
from two_vllm.command import run_logged

from warmroute.proxy.demo.progress import Step

PHOENIX_VERSION = "20.26.1"


def ensure_phoenix() -> Path:
    """Return the folder of a working environment, made when missing.

    Takes a minute or two and about 0.9 GB the first time.

    Raises:
        DemoError: it could not be made; says why and where the log is.
    """
    return ensure_made(python_folder(f"phoenix-{PHOENIX_VERSION}"), _build)


def _build(folder: Path, log: Path) -> None:
    python = folder / "bin" / "python"
    package = f"arize-phoenix=={PHOENIX_VERSION}"
    print(f"making {folder} (once, about 0.9 GB, log: {log})", file=sys.stderr)
    with Step(f"  Phoenix {PHOENIX_VERSION}") as step:
        run_logged([sys.executable, "-m", "venv", folder], log, step)
        run_logged([python, "-m", "pip", "--no-input", "install", package], log, step)
        run_logged([python, "-c", "import phoenix.server.main"], log, step)
