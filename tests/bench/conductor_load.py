"""What the bench of the conductor plays: chats, agents, and prompts of one use."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

VOCABULARY = (3, 259)


class Sender(Protocol):
    """A fleet that takes prompts."""

    async def ask(self, prompt: list[int], answer: int, half: Any) -> None: ...


Pair = Sequence[tuple[Sender, Any]]


@dataclass(frozen=True)
class Shape:
    """One kind of conversation: how it begins, grows and waits."""

    shared: int
    first: int
    step: int
    turns: int
    gap_s: tuple[float, float]
    answer: int


CHAT = Shape(768, 1536, 96, 40, (8.0, 14.0), 8)
AGENT = Shape(768, 768, 768, 3, (0.2, 0.6), 4)


@dataclass(frozen=True)
class Load:
    """How much of each kind is played."""

    chats: int = 9
    agents_per_s: float = 0.9
    unique_per_s: float = 0.0
    unique_tokens: int = 1500


LOADS = {
    "mixed": Load(),
    "hostile": Load(chats=0, agents_per_s=0.0, unique_per_s=3.0),
}


class Player:
    """Play one schedule to both fleets."""

    def __init__(self, load: Load, seed: int, block: int, pair: Pair) -> None:
        self.load = load
        self.pair = pair
        self.times = random.Random(seed * 1000 + block)
        self.tokens = random.Random(seed * 1000 + block + 500)
        # Templates stay what they are from block to block.
        fixed = random.Random(seed)
        self.chat_heads = [_draw(fixed, CHAT.shared) for _ in range(2)]
        self.agent_heads = [_draw(fixed, AGENT.shared) for _ in range(2)]

    async def play(self, seconds: float) -> None:
        end = time.perf_counter() + seconds
        async with asyncio.TaskGroup() as group:
            for at in range(self.load.chats):
                delay = self.times.uniform(0, 4)
                group.create_task(self._talk(CHAT, self.chat_heads[at % 2], delay, end))
            for at in range(int(self.load.agents_per_s * seconds)):
                head, delay = self.agent_heads[at % 2], self.times.uniform(0, seconds)
                group.create_task(self._talk(AGENT, head, delay, end))
            for _ in range(int(self.load.unique_per_s * seconds)):
                group.create_task(self._once(self.times.uniform(0, seconds)))

    async def _talk(
        self, shape: Shape, head: list[int], delay: float, end: float
    ) -> None:
        waits = [self.times.uniform(*shape.gap_s) for _ in range(shape.turns)]
        prompt = head + _draw(self.tokens, shape.first)
        await asyncio.sleep(delay)
        for wait in waits:
            if time.perf_counter() > end:
                return
            await self._ask(prompt, shape.answer)
            prompt = prompt + _draw(self.tokens, shape.step)
            await asyncio.sleep(wait)

    async def _once(self, delay: float) -> None:
        prompt = _draw(self.tokens, self.load.unique_tokens)
        await asyncio.sleep(delay)
        await self._ask(prompt, 4)

    async def _ask(self, prompt: list[int], answer: int) -> None:
        """Send a prompt to both, the one first as often as the other."""
        asked = [front.ask(prompt, answer, half) for front, half in self.pair]
        if self.tokens.random() < 0.5:
            asked.reverse()
        await asyncio.gather(*asked)


def _draw(source: random.Random, count: int) -> list[int]:
    return [source.randrange(*VOCABULARY) for _ in range(count)]
