"""Read the excerpts of real chats, as users that speak turn by turn."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
_QUESTIONS_A_CHAT = 8
_AIRLINE_A_MT_BENCH = 3

Message = Mapping[str, Any]


@dataclass(slots=True)
class Turn:
    """What a user adds before one request, and the answer on record.

    Without a recorded answer the engine's own one goes into the history.
    """

    added: Sequence[Message]
    answer: Message | None


@dataclass(slots=True)
class Chat:
    """One conversation: its opening messages, then its turns in order."""

    name: str
    opening: Sequence[Message] = ()
    turns: list[Turn] = field(default_factory=list)


def read_chats(
    count: int, data: Path = DATA, most_turns: int | None = None
) -> list[Chat]:
    """Return the first *count* chats, in a fixed order: one in four is MT-Bench.

    Args:
        count: Chats in all.
        data: Where the excerpts lie.
        most_turns: Turns after which a chat ends; None plays all of them.
    """
    chats = islice(_mixed(data), count)
    return [replace(chat, turns=chat.turns[:most_turns]) for chat in chats]


def num_chats(data: Path = DATA) -> int:
    """Return how many chats the excerpts hold."""
    return sum(1 for _ in _mixed(data))


def _mixed(data: Path) -> Iterator[Chat]:
    mt_bench = _mt_bench(data)
    for number, chat in enumerate(_airline(data), start=1):
        yield chat
        if number % _AIRLINE_A_MT_BENCH == 0:
            yield from islice(mt_bench, 1)


def _airline(data: Path) -> Iterator[Chat]:
    """Yield an agent's runs: one shared system prompt, then tool calls."""
    system = {"role": "system", "content": (data / "airline_system.md").read_text()}
    for row in _rows(data / "airline_chats.jsonl"):
        chat = Chat(row["id"], (system,))
        added: list[Message] = []
        for message in row["messages"]:
            if message["role"] == "assistant":
                chat.turns.append(Turn(tuple(added), message))
                added = []
            else:
                added.append(message)
        yield chat


def _mt_bench(data: Path) -> Iterator[Chat]:
    """Yield chats of a few two-turn questions, without a system prompt."""
    questions = _rows(data / "mt_bench.jsonl")
    while group := list(islice(questions, _QUESTIONS_A_CHAT)):
        chat = Chat(f"mt-bench-{group[0]['question_id']}")
        for text in (text for row in group for text in row["turns"]):
            chat.turns.append(Turn(({"role": "user", "content": text},), None))
        yield chat


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open() as lines:
        for line in lines:
            yield json.loads(line)
