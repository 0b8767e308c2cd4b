"""The bench's own instruments count and judge as they should."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
REPORT = """
from report import Report, Sample
costs = {"sglang-router": [70, 80, 90], "warmroute": [20, 40, 30], "nginx": [15, 15, 9]}
report = Report(list(costs), ["1k"])
for proxy, values in costs.items():
    report.idle_mib[proxy] = 90
    for value in values:
        report.samples.append(Sample(proxy, "1k", value, 100, 0, 0, 1, {}))
report.skipped["vllm-router"] = "no network"
print(report.table())
print(report.verdicts())
print(report.faults())
"""


@pytest.mark.skipif(
    shutil.which("cc") is None or not Path("/proc/self/schedstat").exists(),
    reason="needs Linux and a C compiler",
)
def test_instruments_lose_nothing() -> None:
    """Load generator and mock engine agree on every request and chunk."""
    done = subprocess.run(
        [sys.executable, FOLDER / "run.py", "--self-check", "--seconds", "0.1"],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "self-check passed" in done.stdout


@pytest.fixture(scope="module")
def printed() -> list[str]:
    """Print a report of made-up samples, from the folder of its modules."""
    done = subprocess.run(
        [sys.executable, "-c", REPORT],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=FOLDER,
        check=True,
    )
    return done.stdout.splitlines()


def test_table_has_medians_and_ratios(printed: list[str]) -> None:
    """A cell is the median of the rounds and its ratio to nginx's."""
    assert "80.0 (5.33x)" in printed[1]
    assert "30.0 (2.00x)" in printed[2]
    assert "15.0 (1.00x)" in printed[3]


def test_table_names_what_was_skipped(printed: list[str]) -> None:
    """A peer that is not there is told, with the reason."""
    assert printed[4] == "vllm-router: skipped: no network"


def test_goals_are_judged_by_ratio(printed: list[str]) -> None:
    """A met goal, a missed one, and nothing about what was not measured."""
    met = "(True, '1k: 0.38x sglang-router, at most 0.45x')"
    missed = "(False, 'idle RSS: 90 MiB, at most 80')"
    assert printed[5] == f"[{met}, {missed}]"


def test_duplicates_are_faults(printed: list[str]) -> None:
    """One request served twice in each of nine rounds makes nine faults."""
    assert printed[6] == "9"
