"""The bench of token eviction computes what the engine computes."""

import json
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def run(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, FOLDER / "run.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


def test_its_arithmetic_is_that_of_the_engine() -> None:
    """Branches equal whole texts, and a budget for all equals the engine."""
    done = run("--self-check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "self-check passed" in done.stdout


def test_it_runs_on_a_tiny_model(tmp_path: Path) -> None:
    """A task's table, figures and pairing come out on data made here."""
    (tmp_path / "wikitext2_valid.txt").write_text("the quick brown fox " * 500)
    passages = [
        {"context": f"one two {n} three four", "continuation": "five"} for n in range(4)
    ]
    lines = "\n".join(json.dumps(each) for each in passages)
    (tmp_path / "lambada_openai.jsonl").write_text(lines)
    figures = tmp_path / "figures.json"
    done = run(
        "--data",
        tmp_path,
        "--model",
        "tiny",
        "--task",
        "lambada",
        "--items",
        "4",
        "--json",
        figures,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(figures.read_text())["lambada"]
    assert [row["method"] for row in rows][:2] == ["full", "window"]
    assert rows[0]["to_full_95"] == "+0.000 [+0.000, +0.000]"
    assert all(row["items"] == 4 for row in rows)


def test_missing_data_are_named(tmp_path: Path) -> None:
    """The message says which file is missing and where to look."""
    done = run("--data", tmp_path, "--model", "tiny")
    assert done.returncode == 1
    assert "no wikitext2_valid.txt" in done.stderr
    assert "README.md" in done.stderr


def test_it_stops_when_the_time_is_up(tmp_path: Path) -> None:
    """Without any time a single batch of eight is judged."""
    (tmp_path / "wikitext2_valid.txt").write_text("the quick brown fox " * 500)
    line = json.dumps({"context": "one two three four", "continuation": "five"})
    (tmp_path / "lambada_openai.jsonl").write_text(f"{line}\n" * 12)
    figures = tmp_path / "figures.json"
    asked = ["--model", "tiny", "--task", "lambada", "--items", "12", "--minutes", "0"]
    done = run("--data", tmp_path, *asked, "--json", figures)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(row["items"] == 8 for row in json.loads(figures.read_text())["lambada"])
