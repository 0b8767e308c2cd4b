"""The bench of block eviction replays each policy as the first simulator did."""

import json
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
CAPACITY = "0.002048"
"""Four blocks of 512 tokens, in millions of tokens."""


def lrfu_percent(folder: Path, *arguments: str) -> float:
    """Replay two uses of a short prompt, a long one, and the long one again."""
    prompts = [[1, 2], [1, 2], [3, 4, 5, 6], [3, 4, 5, 6]]
    rows = [{"timestamp": 1000 * at, "hash_ids": ids} for at, ids in enumerate(prompts)]
    text = "\n".join(json.dumps(row) for row in rows)
    (folder / "mooncake_conversation.jsonl").write_text(text)
    figures = folder / "figures.json"
    command = [sys.executable, FOLDER / "run.py", "--data", folder, "--json", figures]
    command += ["--traces", "conversation", "--policies", "lrfu"]
    command += ["--capacities", CAPACITY, *arguments]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    hits = json.loads(figures.read_text())["conversation"]["lrfu"]
    return float(hits[str(float(CAPACITY))])


def test_lrfu_keeps_the_prompt_at_hand_as_its_tree_did(tmp_path: Path) -> None:
    """The long prompt displaces what was used more often, and is found again."""
    assert lrfu_percent(tmp_path) == 100.0 * (2 + 4) / 12
    assert lrfu_percent(tmp_path, "--held") == 100.0 * (2 + 4) / 12


def test_beside_the_running_requests_a_prompt_is_its_own_victim(tmp_path: Path) -> None:
    """Two uses outweigh one, so the long prompt's tail gives way to its head."""
    assert lrfu_percent(tmp_path, "--beside") == 100.0 * (2 + 2) / 12
