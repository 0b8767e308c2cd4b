"""Three loads: chats with one system prompt, retrieval, and agents.

A prompt is a list of token ids. A word or mark of a text is a token, and its id a hash
of it, so that the same text is the same tokens on every engine. Answers are those on
record, whatever the engine says, so that all policies are asked the same.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

ROOT = Path(__file__).parents[3]
CHATS = ROOT / "proxy" / "demo" / "data"
LOADS = ("chat", "rag", "agents")

_PARTS = re.compile(r"\w+|[^\w\s]")
_FIRST_ID = 16
_PASSAGE = 240
_TOOL_TOKENS = (60, 140)
_CALL_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: what is asked *think_s* after the answer before it."""

    think_s: float
    prompt: tuple[int, ...]
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Load:
    """Sessions side by side, whose turns wait for each other.

    Attributes:
        name: What it is.
        what: It in words.
        system_tokens: The beginning that all its prompts share.
        sessions: The first turn of each waits from the start of the load.
    """

    name: str
    what: str
    system_tokens: int
    sessions: tuple[tuple[Turn, ...], ...]

    @property
    def num_requests(self) -> int:
        """Count the requests."""
        return sum(map(len, self.sessions))


class Words:
    """Turn texts into token ids below *vocabulary*."""

    def __init__(self, vocabulary: int) -> None:
        self._most = vocabulary - _FIRST_ID

    def ids(self, text: str) -> list[int]:
        """Return an id for each word and mark."""
        return [
            _FIRST_ID + crc32(part.encode()) % self._most
            for part in _PARTS.findall(text)
        ]

    def made(self, rng: Random, count: int) -> list[int]:
        """Return *count* ids of nothing in particular."""
        return [_FIRST_ID + rng.randrange(self._most) for _ in range(count)]


def make_load(name: str, words: Words, size: float, seed: int) -> Load:
    """Make one of `LOADS`, *size* times as long as by default."""
    rng = Random(f"{name} {seed}")
    if name == "chat":
        return chat_load(words, size, rng)
    if name == "rag":
        return rag_load(words, size, rng)
    return agent_load(words, size, rng)


def chat_load(words: Words, size: float, rng: Random, span_s: float = 40.0) -> Load:
    """Play the tau-bench chats: one system prompt and its tools, then the turns."""
    text = (CHATS / "airline_chats.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    rows = rows[: max(1, round(len(rows) * size))]
    system = words.ids((CHATS / "airline_system.md").read_text())
    system += words.ids(json.dumps(_tools(rows)))
    sessions = [
        tuple(_chat(words, system, row["messages"], span_s * rng.random(), rng))
        for row in rows
    ]
    return Load(
        "chat",
        f"{len(rows)} tau-bench chats with one system prompt and tools",
        len(system),
        tuple(sessions),
    )


def _tools(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the functions that the chats call, with their arguments' names."""
    found: dict[str, set[str]] = {}
    for row in rows:
        for message in row["messages"]:
            for call in message.get("tool_calls") or ():
                given = json.loads(call["function"]["arguments"])
                found.setdefault(call["function"]["name"], set()).update(given)
    return {name: sorted(found[name]) for name in sorted(found)}


def _chat(
    words: Words,
    system: Sequence[int],
    messages: Sequence[Mapping[str, Any]],
    start_s: float,
    rng: Random,
) -> Iterator[Turn]:
    history, think_s = list(system), start_s
    for message in messages:
        said = words.ids(json.dumps(message))
        if message["role"] == "assistant":
            yield Turn(think_s, tuple(history), rng.randint(8, 24))
            think_s = 1.0 + rng.expovariate(0.5)
        history += said


def rag_load(
    words: Words,
    size: float,
    rng: Random,
    rate: float = 3.5,
    num_passages: int = 30,
    k: int = 3,
) -> Load:
    """Ask about passages of this repository's documentation, by Zipf's law.

    A prompt is the system prompt, *k* passages drawn by ``1 / rank`` in the order of
    the draw, each once, and a question of its own; *rate* come a second.
    """
    system = words.ids((CHATS / "airline_system.md").read_text())
    # With draws of its own: what else is drawn must not depend on the pages' lengths.
    passages = Random("passages").sample(_passages(words), num_passages)
    shares = list(accumulate(1 / rank for rank in range(1, len(passages) + 1)))
    now_s, sessions = 0.0, []
    for _ in range(max(1, round(200 * size))):
        drawn: dict[int, None] = {}
        while len(drawn) < k:
            drawn[rng.choices(range(len(passages)), cum_weights=shares)[0]] = None
        prompt = [*system, *(one for place in drawn for one in passages[place])]
        prompt += words.made(rng, 30)
        sessions.append((Turn(now_s, tuple(prompt), rng.randint(8, 24)),))
        now_s += rng.expovariate(rate)
    return Load(
        "rag",
        f"questions on {k} of {num_passages} passages of the documentation, Zipf 1.0, "
        f"{rate:g} a second",
        len(system),
        tuple(sessions),
    )


def _passages(words: Words) -> list[list[int]]:
    pages = sorted((ROOT / "docs").glob("*.md"))
    texts = (words.ids(page.read_text()) for page in pages)
    return [
        text[at : at + _PASSAGE]
        for text in texts
        for at in range(0, len(text) - _PASSAGE, _PASSAGE)
    ]


def agent_load(
    words: Words, size: float, rng: Random, num_turns: int = 16, span_s: float = 12.0
) -> Load:
    """Play agents whose context grows by a call and what a tool answers, turn by turn.

    Contents are made words; who runs a tool is away for a second or so.
    """
    system = words.made(rng, 1200)
    sessions = []
    for _ in range(max(1, round(12 * size))):
        history = [*system, *words.made(rng, rng.randint(150, 450))]
        think_s, turns = span_s * rng.random(), []
        for _ in range(num_turns):
            turns.append(Turn(think_s, tuple(history), rng.randint(8, 24)))
            think_s = 0.5 + rng.expovariate(1.0)
            added = _CALL_TOKENS + rng.randint(*_TOOL_TOKENS)
            history += words.made(rng, added)
        sessions.append(tuple(turns))
    return Load(
        "agents",
        f"{len(sessions)} agents of {num_turns} turns, system prompt and tools shared",
        len(system),
        tuple(sessions),
    )
