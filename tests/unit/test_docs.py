"""What users can name is documented: flags, headers, policies, metrics, files."""

import argparse
import re
import shlex
import subprocess
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from warmroute.proxy.cli import build_parser
from warmroute.proxy.commands.kv import VERBS

ROOT = Path(__file__).parents[2]
DOCS = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}
README = (ROOT / "README.md").read_text()
HEADER = re.compile(r"x-[a-z]+(?:-[a-z]+)+")


PAGES = {
    "bench": "bench.md",
    "demo": "demo.md",
    "doctor": "doctor.md",
    "engine": "embedded-engine.md",
    "kv": "kv-control.md",
    "replay": "replay.md",
    "stats": "why.md",
    "top": "why.md",
    "why": "why.md",
}


def _commands() -> dict[str, argparse.ArgumentParser]:
    choices: dict[str, argparse.ArgumentParser] = next(
        action.choices
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return choices


def _flags() -> set[tuple[str, str]]:
    return {
        (name, flag)
        for name, command in _commands().items()
        for action in command._actions
        for flag in action.option_strings
        if flag not in ("-h", "--help")
    }


@pytest.mark.parametrize(("command", "flag"), sorted(_flags()))
def test_flag_is_documented(command: str, flag: str) -> None:
    """Every command-line flag stands in the page of its command."""
    assert f"`{flag}" in DOCS[PAGES.get(command, "operations.md")]


def _examples() -> list[str]:
    """Return the commands that help shows, without what a shell does with them."""
    lines = [
        re.split(" [|>] ", line.strip())[0]
        for command in _commands().values()
        for line in re.sub(r"\\\n\s*", "", command.epilog or "").splitlines()
    ]
    return [line for line in lines if line.startswith("warmroute ")]


@pytest.mark.parametrize("example", _examples())
def test_an_example_of_the_help_is_understood(example: str) -> None:
    """Every command that a --help shows has flags and values that there are."""
    words = shlex.split(example, comments=True)
    assert build_parser().parse_args(words[1:]) is not None


def test_every_command_shows_an_example() -> None:
    shown = {example.split()[1] for example in _examples()}
    assert shown == set(_commands())


@pytest.mark.parametrize("verb", VERBS)
def test_verb_is_documented(verb: str) -> None:
    """Every verb of ``warmroute kv`` is in its help and in its page."""
    page = DOCS["kv-control.md"]
    assert any(f"{mark}{verb}" in page for mark in ("**", "`", "kv "))
    assert verb in _commands()["kv"].format_help()


def _headers() -> set[str]:
    sources = [*(ROOT / "proxy").glob("*.py"), *(ROOT / "proxy/http").glob("*.py")]
    text = " ".join(path.read_text().lower() for path in sources)
    return set(HEADER.findall(text))


@pytest.mark.parametrize("header", sorted(_headers()))
def test_header_is_documented(header: str) -> None:
    """Every x- header that the data path reads or writes is in its document."""
    assert header in DOCS["data-path.md"].lower()


@pytest.mark.parametrize(
    "name", sorted(point.name for point in entry_points(group="warmroute.policies"))
)
def test_policy_is_documented(name: str) -> None:
    """Every registered policy stands in docs/routing.md and in the README."""
    assert f"`{name}`" in DOCS["routing.md"]
    assert f"`{name}`" in README


def test_links_lead_somewhere() -> None:
    """Every relative link of the README and the docs names a file that is there."""
    link = re.compile(r"\]\((?!https?:|#)([^)#]+)")
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    pages += [*(ROOT / "examples").glob("*/README.md"), ROOT / "CONTRIBUTING.md"]
    for page in pages:
        for target in link.findall(page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def _pages() -> dict[str, str]:
    texts = {name: ROOT / name for name in ("README.md", "CONTRIBUTING.md")}
    texts |= {path.name: path for path in (ROOT / "docs").glob("*.md")}
    return {name: path.read_text() for name, path in texts.items()}


PATH = re.compile(r"(?<![\w./-])(?:proxy|policies|adapters)/[\w./-]*\w|`[\w/]+\.py`")


@pytest.mark.parametrize(("name", "text"), sorted(_pages().items()))
def test_named_source_exists(name: str, text: str) -> None:
    """Every path of a floor is there, and every file named alone is in some folder."""
    floors = [ROOT / floor for floor in ("proxy", "policies", "adapters")]
    for named in PATH.findall(text):
        place = named.strip("`")
        is_there = (ROOT / place).exists()
        if named.startswith("`"):
            is_there |= any(any(floor.rglob(place)) for floor in floors)
        assert is_there, f"{name} names {place}"


@pytest.mark.parametrize(("name", "text"), sorted(_pages().items()))
def test_tables_are_whole(name: str, text: str) -> None:
    """A table has a line of dashes; rows behind a blank line would have none."""
    for block in re.split(r"\n\s*\n", text):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        if rows:
            assert set("".join(rows[1:2])) == set("|-"), f"{name}: {rows[0]}"


def test_the_main_example_takes_options() -> None:
    """`make run-vllm ARGS=...` hands them to the script, and the help says so."""
    makefile = (ROOT / "Makefile").read_text()
    assert "examples/01_two_vllm/run.py $(ARGS)" in makefile
    assert re.search(r"^run-vllm: .*ARGS=", makefile, re.MULTILINE)
    page = (ROOT / "examples/01_two_vllm/README.md").read_text()
    assert "make run-vllm ARGS=" in page


@pytest.mark.parametrize("name", sorted(DOCS))
def test_document_is_reachable(name: str) -> None:
    """No page of docs/ is an orphan."""
    others = [text for other, text in DOCS.items() if other != name]
    assert name in " ".join([README, *others])


def test_command_blocks_of_the_readme_can_be_pasted() -> None:
    """A shell reads each as it stands; nothing is left out, or taken from nowhere."""
    for block in re.findall(r"^```sh\n(.*?)^```", README, re.DOTALL | re.MULTILINE):
        checked = subprocess.run(["bash", "-n"], input=block, text=True)
        assert checked.returncode == 0, block
        assert "..." not in block
        for name in re.findall(r"\$(\w+)", block):
            assert f"{name}=" in block, f"{name} is set nowhere:\n{block}"
        for name in re.findall(r"@([\w.]+)", block):
            assert f"> {name}" in block, f"{name} is written nowhere:\n{block}"
