"""Cut the excerpts in `proxy/demo/data` out of the published data.

Usage: ``python cut_chats.py TRAJECTORIES QUESTIONS``, where TRAJECTORIES is
``historical_trajectories/gpt-4o-airline.json`` of sierra-research/tau-bench
at commit 59a200c6, and QUESTIONS is
``fastchat/llm_judge/data/mt_bench/question.jsonl`` of lm-sys/FastChat at
commit 0e6d3e4b.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parents[2] / "proxy" / "demo" / "data"
_MAX_CHATS = 24
_MAX_CHAT_CHARS = 9000
_MAX_MESSAGE_CHARS = 2500
_MIN_TURNS = 8
_CUT_BEFORE = "## Domain Basic"
_CATEGORIES = (
    "writing",
    "roleplay",
    "reasoning",
    "extraction",
    "stem",
    "humanities",
)

Json = Mapping[str, Any]


def airline_chats(runs: Iterable[Json]) -> Iterator[Json]:
    """Yield the first run of each task, ended early where it grows long."""
    for run in runs:
        if run["trial"] != 0:
            continue
        messages = shortened(run["traj"][1:])
        turns = sum(message["role"] == "assistant" for message in messages)
        if turns >= _MIN_TURNS:
            yield {"id": f"airline-{run['task_id']}", "messages": messages}


def shortened(messages: Iterable[Json]) -> list[Json]:
    """Return the leading messages that fit, up to an assistant's one."""
    kept: list[Json] = []
    chars = 0
    for message in messages:
        size = len(json.dumps(message))
        chars += size
        if size > _MAX_MESSAGE_CHARS or chars > _MAX_CHAT_CHARS:
            break
        kept.append(message)
    while kept and kept[-1]["role"] != "assistant":
        kept.pop()
    return kept


def system_prompt(runs: Iterable[Json]) -> str:
    """Return the opening of the airline's policy."""
    policy = str(next(iter(runs))["traj"][0]["content"])
    return policy[: policy.index(_CUT_BEFORE)].strip() + "\n"


def mt_bench(lines: Iterable[str]) -> Iterator[Json]:
    """Yield the questions of a few categories, turns only."""
    for line in lines:
        question = json.loads(line)
        if question["category"] in _CATEGORIES:
            yield {key: question[key] for key in ("question_id", "category", "turns")}


def write_lines(name: str, rows: Iterable[Json]) -> None:
    """Write *rows* as JSON lines."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (_HERE / name).write_text(text)


def main() -> None:
    """Write the three excerpts."""
    runs = json.loads(Path(sys.argv[1]).read_text())
    (_HERE / "airline_system.md").write_text(system_prompt(runs))
    write_lines("airline_chats.jsonl", list(airline_chats(runs))[:_MAX_CHATS])
    with Path(sys.argv[2]).open() as lines:
        write_lines("mt_bench.jsonl", mt_bench(lines))


if __name__ == "__main__":
    main()
