"""Compile the request path with mypyc when a wheel is built; see docs/compiled.md.

Everything else about the package is in pyproject.toml, and so is the list of
modules. Whatever is in the way of compiling, the outcome is a pure-Python wheel.
"""

import os
import shutil
import sys
import sysconfig
import tomllib
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = PROJECT["tool"]["setuptools"]["package-dir"]
MODULES = PROJECT["tool"]["warmroute"]["compiled"]
# With dots, so that mypyc's shared library is no top-level module beside ours; on
# the lowest floor, because every compiled module imports it.
LIBRARY = "warmroute.policies._compiled"
# Functions call each other directly, not through a table that could replace them.
CALLS_WITHIN = ["-fno-semantic-interposition", "-fvisibility=hidden"]


def obstacle() -> str | None:
    """Say why nothing can be compiled, None when it can be tried."""
    if os.environ.get("WARMROUTE_PURE", "0") not in ("", "0"):
        return "WARMROUTE_PURE is set"
    if find_spec("mypyc") is None:
        return "mypyc is not installed"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    if shutil.which(compiler[0]) is None:
        return f"no C compiler {compiler[0]!r}; on Debian: apt-get install gcc"
    return None


def tell_pure(reason: str) -> None:
    """Announce a wheel without compiled modules."""
    print(f"warmroute: building pure Python ({reason})", flush=True)


def lay_out(tree: Path) -> None:
    """Copy the sources to *tree* under the names they are imported by."""
    shutil.rmtree(tree, ignore_errors=True)
    for name, folder in FOLDERS.items():
        shutil.copytree(ROOT / folder, tree.joinpath(*name.split(".")))
    (tree / "warmroute" / "__init__.py").touch()


def translate(build: Path) -> list[Extension]:
    """Write the modules as C into *build*; return them as extensions."""
    from mypyc.build import mypycify

    tree = build / "tree"
    lay_out(tree)
    home = Path.cwd()
    os.chdir(tree)  # paths in tracebacks become warmroute/proxy/...
    try:
        extensions = mypycify(
            [
                # None of the checks of pyproject.toml: they need our dependencies.
                "--config-file=",
                "--ignore-missing-imports",
                "--follow-imports=silent",
                *(f"{name.replace('.', '/')}.py" for name in MODULES),
            ],
            opt_level="2",
            debug_level="0",
            target_dir=str(build),
            group_name=LIBRARY,
        )
    finally:
        os.chdir(home)
    for extension in extensions:
        extension.extra_compile_args += CALLS_WITHIN
    return extensions


class BuildCompiled(build_ext):
    """Compile all of the modules or none of them."""

    def run(self) -> None:
        """Build, and fall back to nothing when that fails."""
        # A compiled module in the checkout would hide every later edit of it.
        if self.editable_mode or self.inplace:
            self.extensions = []
            return
        try:
            self.distribution.ext_modules = translate(
                Path(self.build_temp).resolve() / "mypyc"
            )
            self.reinitialize_command(self).ensure_finalized()
            super().run()
        except (Exception, SystemExit) as error:
            self.leave_nothing()
            tell_pure(f"compiling failed: {error}")

    def leave_nothing(self) -> None:
        """Remove what was compiled: half of it would not start."""
        for path in Path(self.build_lib, "warmroute").rglob("*.so"):
            path.unlink()
        self.extensions = []


reason = obstacle()
if reason is not None:
    if "bdist_wheel" in sys.argv:  # this file also runs for mere metadata
        tell_pure(reason)
    setup()
else:
    # The placeholder marks the wheel as bound to this platform and Python.
    setup(
        cmdclass={"build_ext": BuildCompiled},
        ext_modules=[Extension(f"{LIBRARY}__mypyc", [])],
    )
