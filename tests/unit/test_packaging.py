"""What `pip install` puts on a machine."""

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FLOORS = ("proxy", "adapters", "policies")
COPIED = ("pyproject.toml", "setup.py", "README.md", "LICENSE", *FLOORS)
GROUPS = ("warmroute.policies", "warmroute.adapters", "warmroute.commands")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what a build reads, so that no old build folder leaks into a wheel."""
    source = tmp_path_factory.mktemp("source")
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source)
    return source


def build_wheel(source: Path, target: Path, **variables: str) -> tuple[Path, str]:
    """Build the wheel; return it and what pip and setup.py said."""
    command = [sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps"]
    if find_spec("setuptools"):  # then the test needs no package index
        command.append("--no-build-isolation")
    done = subprocess.run(
        [*command, "--wheel-dir", target, source],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        timeout=280,
        env={**os.environ, **variables},
    )
    return next(target.glob("warmroute-*.whl")), done.stdout


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of Python source, which is made in no time."""
    target = tmp_path_factory.mktemp("wheel")
    return build_wheel(source, target, WARMROUTE_PURE="1")[0]


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    """Return the files inside the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a fresh environment that borrows our dependencies."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=280
    )
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    subprocess.run([*install, "--no-deps", wheel], check=True, timeout=280)
    packages = next(folder.glob("lib/python*/site-packages"))
    # Behind its own site-packages, and without our editable hook, which works
    # through a .pth file there: .pth files of a borrowed folder are not read.
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def packages_on_disk() -> set[str]:
    return {
        "warmroute." + ".".join(init.parent.relative_to(ROOT).parts)
        for floor in FLOORS
        for init in (ROOT / floor).rglob("__init__.py")
    }


def test_every_package_folder_is_listed(project: dict[str, Any]) -> None:
    """The list in pyproject.toml equals the folders with an __init__.py."""
    assert packages_on_disk() == set(project["tool"]["setuptools"]["packages"])


def test_every_module_is_inside_a_package() -> None:
    """A module in a folder without __init__.py would be left out in silence."""
    orphans = [
        path.relative_to(ROOT)
        for floor in FLOORS
        for path in (ROOT / floor).rglob("*.py")
        if not (path.parent / "__init__.py").exists()
    ]
    assert orphans == []


def test_wheel_without_compiled_modules_fits_everywhere(wheel: Path) -> None:
    """Nothing in it is bound to a platform."""
    assert wheel.name.endswith("-py3-none-any.whl")


def test_missing_compiler_gives_a_pure_wheel(source: Path, tmp_path: Path) -> None:
    """A machine without a C compiler can install, and is told what it lacks."""
    wheel, said = build_wheel(source, tmp_path, CC="/nonexistent/cc")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "warmroute: building pure Python (no C compiler '/nonexistent/cc'" in said


def test_failing_compiler_leaves_no_half_of_it(source: Path, tmp_path: Path) -> None:
    """Modules that were compiled before the failure are not in the wheel."""
    wheel, said = build_wheel(source, tmp_path, CC="false")
    assert "warmroute: building pure Python (compiling failed: " in said
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]


def test_wheel_holds_only_the_namespace(names: list[str]) -> None:
    """Site-packages get warmroute/ and its dist-info, no generic names."""
    tops = {name.split("/")[0] for name in names}
    info = [top for top in tops if top.endswith(".dist-info")]
    assert {"warmroute", *info} == tops
    assert len(info) == 1


def test_wheel_holds_every_module(names: list[str]) -> None:
    """Nothing that works in the checkout is missing after an install."""
    modules = {
        f"warmroute/{path.relative_to(ROOT)}"
        for floor in FLOORS
        for path in (ROOT / floor).rglob("*.py")
    }
    assert modules == {name for name in names if name.endswith(".py")}


def test_wheel_holds_the_files_of_the_dashboard(names: list[str]) -> None:
    """Pages, scripts and vendored code are not modules, and come along."""
    static = ROOT / "proxy" / "dashboard" / "static"
    files = {
        f"warmroute/{path.relative_to(ROOT)}"
        for path in static.rglob("*")
        if path.is_file()
    }
    assert files <= set(names)
    assert f"warmroute/{static.relative_to(ROOT)}/index.html" in files


def test_namespace_has_no_code_of_its_own(names: list[str]) -> None:
    """Other distributions may add to the namespace `warmroute`."""
    assert "warmroute/__init__.py" not in names


def test_wheel_marks_its_types(names: list[str]) -> None:
    """Users' type checkers read our annotations."""
    assert {f"warmroute/{floor}/py.typed" for floor in FLOORS} <= set(names)


def test_wheel_carries_the_licence(names: list[str]) -> None:
    """The licence text travels with the code."""
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_licence_is_the_one_declared(project: dict[str, Any]) -> None:
    """LICENSE holds the whole text of the licence that the metadata names."""
    text = (ROOT / "LICENSE").read_text()
    assert project["project"]["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


@pytest.mark.parametrize("group", GROUPS)
def test_every_declared_plugin_loads(group: str, project: dict[str, Any]) -> None:
    """Each entry point is installed as declared and leads to a class."""
    declared = project["project"]["entry-points"][group]
    found = {point.name: point for point in entry_points(group=group)}
    for name, value in declared.items():
        assert value == found[name].value
        assert isinstance(found[name].load(), type)


def test_console_script_loads() -> None:
    """The command `warmroute` leads to a function."""
    (script,) = entry_points(group="console_scripts", name="warmroute")
    assert callable(script.load())


def test_installed_wheel_runs(installed: Path, project: dict[str, Any]) -> None:
    """The command of a plain install tells the version of the metadata."""
    done = subprocess.run(
        [installed / "warmroute", "--version"],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=installed,
        env={"PATH": os.environ["PATH"]},
    )
    assert project["project"]["version"] in done.stdout, done.stderr
    assert done.returncode == 0


def test_installed_wheel_finds_its_plugins(installed: Path) -> None:
    """Built-in policies come through the entry points of the installed wheel."""
    code = (
        "from importlib.metadata import entry_points\n"
        "point = entry_points(group='warmroute.policies')['round_robin']\n"
        "import sys; print(sys.modules[point.load().__module__].__file__)"
    )
    done = subprocess.run(
        [installed / "python", "-c", code],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=installed,
        check=True,
    )
    assert str(installed.parent) in done.stdout


def imported(path: Path) -> set[str]:
    """Return the first part of each name that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or "").split(".")[0])
    return found


@pytest.mark.parametrize("folder", [*FLOORS, "tests", "examples"])
def test_nobody_imports_a_floor_by_its_folder(folder: str) -> None:
    """`import proxy` works in the checkout and makes a second copy: never used."""
    guilty = {
        str(path.relative_to(ROOT)): sorted(bad)
        for path in (ROOT / folder).rglob("*.py")
        if (bad := imported(path) & set(FLOORS))
    }
    assert guilty == {}


def test_source_archive_can_be_built(source: Path, tmp_path: Path) -> None:
    """It holds the build script and every module, and nothing that is generated."""
    code = "from setuptools.build_meta import build_sdist as it; print(it(r'%s'))"
    subprocess.run(
        [sys.executable, "-c", code % tmp_path], cwd=source, check=True, timeout=280
    )
    with tarfile.open(next(tmp_path.glob("warmroute-*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    modules = {
        str(path.relative_to(ROOT))
        for floor in FLOORS
        for path in (ROOT / floor).rglob("*.py")
    }
    assert modules | {"setup.py", "pyproject.toml"} <= names
    assert not [name for name in names if name.endswith((".c", ".so"))]


def test_source_archive_takes_tests_and_examples() -> None:
    """A source distribution can be tested where it is unpacked."""
    lines = (ROOT / "MANIFEST.in").read_text().splitlines()
    assert {"graft examples", "graft tests"} <= set(lines)
