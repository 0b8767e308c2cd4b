"""What is compiled where warmroute is installed from a wheel.

`make test-compiled` sets WARMROUTE_COMPILED, so that its run cannot pass on
Python source by mistake.
"""

import os
import tomllib
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LISTED: list[str] = PROJECT["tool"]["warmroute"]["compiled"]
IS_EXPECTED = os.environ.get("WARMROUTE_COMPILED") == "1"

expected = pytest.mark.skipif(not IS_EXPECTED, reason="only under make test-compiled")


def is_compiled(name: str) -> bool:
    file = import_module(name).__file__
    return file is not None and file.endswith(tuple(EXTENSION_SUFFIXES))


def test_all_or_none_of_the_listed_modules_are_compiled() -> None:
    """An editable install has none, a wheel all of them."""
    assert {is_compiled(name) for name in LISTED} == {IS_EXPECTED}


def test_list_is_sorted_and_has_no_module_twice() -> None:
    """It stays readable."""
    assert sorted(set(LISTED)) == LISTED


@expected
def test_site_packages_get_only_the_namespace() -> None:
    """mypyc's shared library is no top-level module beside warmroute/."""
    installed = files("warmroute") or []
    tops = {path.parts[0] for path in installed} - {".."}
    assert tops == {"warmroute", f"warmroute-{PROJECT['project']['version']}.dist-info"}


@expected
def test_python_source_of_compiled_modules_is_installed() -> None:
    """Tracebacks and debuggers show it, and removing the .so runs it."""
    installed = {str(path) for path in files("warmroute") or []}
    assert {f"{name.replace('.', '/')}.py" for name in LISTED} <= installed
