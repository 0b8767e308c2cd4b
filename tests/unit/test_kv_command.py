"""The command `kv`: what it refuses before it asks anybody."""

from pathlib import Path

import pytest

from warmroute.proxy.cli import main

Capture = pytest.CaptureFixture[str]


def refusal(capsys: Capture, *words: str) -> str:
    try:
        code = main(["kv", *words, "--admin", "http://127.0.0.1:1"])
    except SystemExit as end:
        code = end.code  # type: ignore[assignment]
    assert code == 2, words
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("retain --tokens 1 --ttl -1", "--ttl: '-1' (allowed: a number above 0, up to"),
        ("retain --tokens 1 --ttl nan", "--ttl: 'nan' (allowed: a number above 0"),
        ("retain --tokens 1 --ttl inf", "86400 seconds"),
        ("retain --tokens 1 --ttl x", "--ttl: 'x'"),
        ("budget --method h2o --share 7", "--share: '7'"),
        ("budget --method h2o --share 0", "above 0, up to 1"),
        ("budget --method h2o --budget-tokens 0", "a whole number from 1"),
        ("budget --method h2o --sinks -1", "a whole number from 0"),
        ("evict --tokens 1 --skip-blocks -3", "--skip-blocks: '-3'"),
        ("evict --tokens 1 --skip-blocks 1.5", "--skip-blocks: '1.5'"),
        ("evict --session s --skip-blocks 2", "name their blocks fully"),
        ("evict --hash 9f2c4e1b00d1a7c3 --skip-blocks 2", "name their blocks fully"),
        ("evict --hash 7 --cache-salt s", "name their blocks fully"),
        ("restore --request r --skip-blocks 2", "name their blocks fully"),
        ("restore --request r --hold-tokens 0", "a whole number from 1"),
        ("restore --tokens 1 --hold-tokens 9", "goes with restore --request"),
        ("evict --request r", "evict takes no --request"),
        ("evict --tokens 1 --hold-tokens 9", "evict takes no flag of restore"),
        ("stats --host-bytes 9", "stats takes no flag of budget"),
    ],
)
def test_bad_values_are_bad_usage(words: str, told: str, capsys: Capture) -> None:
    assert told in refusal(capsys, *words.split())


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.txt", ""), ("b.txt", " \n"), ("c.json", "[]"), ("d.json", '{"messages": []}')],
)
def test_an_empty_file_is_bad_usage(
    tmp_path: Path, name: str, content: str, capsys: Capture
) -> None:
    path = tmp_path / name
    path.write_text(content)
    told = refusal(capsys, "evict", "--file", str(path))
    assert f"--file: {path}" in told
    assert "allowed" in told


def test_an_empty_prompt_is_bad_usage(capsys: Capture) -> None:
    assert "--prompt: ''" in refusal(capsys, "evict", "--prompt", "")


def test_a_file_that_cannot_be_read_is_told_in_words(
    tmp_path: Path, capsys: Capture
) -> None:
    """Its name once, and no errno."""
    path = tmp_path / "nope"
    told = refusal(capsys, "evict", "--file", str(path))
    assert told == f"--file: {path} cannot be read: no such file or directory\n"
    path.write_bytes(b"\xff\xfe")
    told = refusal(capsys, "evict", "--file", str(path))
    assert told == f"--file: {path} cannot be read: it is no UTF-8 text\n"


def test_a_value_nested_without_end_is_bad_usage(capsys: Capture) -> None:
    told = refusal(capsys, "policy", "--name", "lru", "--option", "a=" + "[" * 50_000)
    assert "--option: a is nested too deep" in told
