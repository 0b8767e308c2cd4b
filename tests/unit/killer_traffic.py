"""Traffic with and without cache killers, made of words that mean nothing."""

import json
import random
from collections.abc import Iterable, Iterator
from typing import Any

from warmroute.policies.killers.detector import KillerDetector
from warmroute.policies.killers.killer import Killer
from warmroute.proxy.demo.chats import num_chats, read_chats
from warmroute.proxy.prompt import PromptReader

Body = dict[str, Any]


class Writer:
    """Write sentences; the same seed writes the same."""

    def __init__(self, seed: int = 1) -> None:
        self.draw = random.Random(seed)
        letters = "abcdefghijklmnopqrstuvwxyz"
        self.words = [
            "".join(self.draw.choices(letters, k=self.draw.randrange(3, 9)))
            for _ in range(2000)
        ]

    def sentence(self, num_words: int = 12) -> str:
        return " ".join(self.draw.choices(self.words, k=num_words)).capitalize() + "."

    def text(self, num_sentences: int) -> str:
        return " ".join(self.sentence() for _ in range(num_sentences))


def chat(system: str, user: str, **fields: Any) -> Body:
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": user},
    ]
    return {"model": "m", "messages": messages, **fields}


def time_of(at: int) -> str:
    return f"2026-11-30T{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}Z"


def tools(writer: Writer, num: int) -> list[Any]:
    return [
        {
            "type": "function",
            "function": {
                "name": f"tool_{at}",
                "description": writer.text(2),
                "parameters": {
                    "type": "object",
                    "properties": {"a": {"type": "string"}},
                    "required": ["a"],
                },
            },
        }
        for at in range(num)
    ]


def retrieved(writer: Writer, system: str, num: int, num_docs: int) -> Iterator[Body]:
    """Ask with documents drawn by Zipf's law in front of each question."""
    docs = [writer.text(writer.draw.randrange(1, 30)) for _ in range(1000)]
    weights = [1 / rank for rank in range(1, 1001)]
    for _ in range(num):
        found = "\n\n".join(writer.draw.choices(docs, weights, k=num_docs))
        yield chat(system, f"{found}\n\nQuestion: {writer.sentence()}")


def real_chats(num_at_once: int) -> Iterator[Body]:
    """Play the real chats of the demo, some of them at once."""
    draw = random.Random(1)
    waiting = [(iter(one.turns), list(one.opening)) for one in read_chats(num_chats())]
    active = [waiting.pop() for _ in range(num_at_once)]
    while active:
        turns, history = one = draw.choice(active)
        turn = next(turns, None)
        if turn is None:
            active.remove(one)
            active += [waiting.pop()] if waiting else []
            continue
        history += turn.added
        yield {"model": "m", "messages": [dict(message) for message in history]}
        answer = {"role": "assistant", "content": f"{draw.random()} it is. " * 9}
        history.append(turn.answer or answer)


def found_in(bodies: Iterable[Body], **options: Any) -> list[Killer]:
    """Show all *bodies* to a detector, one a second; return what it found."""
    reader, detector = PromptReader(), KillerDetector(secret=1)
    now = 0.0
    for body in bodies:
        prompt = reader.read(
            *("/v1/chat/completions", b"application/json", b""),
            json.dumps(body).encode(),
        )
        (piece,) = prompt.pieces
        assert piece.text is not None
        now += 1.0
        detector.observe(piece.text, piece.root, 4.0, now, **options)
    return detector.killers(now)
