"""The example of a third party's policy installs, is found, and passes its tests."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_policy"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install a copy of the example into a folder of its own, without a network."""
    folder = tmp_path_factory.mktemp("custom")
    source, target = folder / "source", folder / "target"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("build", "*.egg*"))
    flags = ["--no-index", "--no-build-isolation", "--no-deps", "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *flags, "--target", target, source],
        check=True,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    return target


def _run(installed: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_its_own_tests_pass_once_it_is_installed(installed: Path) -> None:
    flags = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
    done = _run(installed, "-m", "pytest", *flags, EXAMPLE / "tests")
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_the_schema_lists_it_with_its_option(installed: Path) -> None:
    done = _run(installed, "-m", "warmroute.proxy.cli", "schema", "--markdown")
    assert "### `warmest_idle`" in done.stdout, done.stderr
    assert (
        "| `few` | an integer from 1 to 1000 | `4` | requests that are few |"
        in done.stdout
    )


def test_it_is_twenty_lines_of_code() -> None:
    """What the README promises, without blank lines and docstrings."""
    lines = (EXAMPLE / "warmest_idle.py").read_text().splitlines()
    code = [line for line in lines if line.strip() and '"""' not in line]
    assert len(code) <= 20
