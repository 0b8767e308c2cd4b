"""A made load of retrieval: prompts of a few popular documents and a question."""

from collections.abc import Callable
from itertools import accumulate
from random import Random
from typing import Final

import msgspec

from warmroute.proxy.replay.trace import Trace, TraceError, TraceRequest

PREFIX: Final = "rag:"
BLOCK_SIZE: Final = 64


class RagLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the load is like; a prompt is system, documents, question.

    Attributes:
        requests: How many come.
        rate: How many a second, at random times.
        docs: Documents that there are.
        k: How many of them a prompt has, each once, the most popular first or last as
            the draw will have it.
        zipf: The n-th document is drawn with ``n ** -zipf``.
        doc: Mean tokens of a document; each is from half to one and a half of it.
        system: Tokens of the system prompt that all share.
        question: Tokens of a question, which is unlike all others.
        output: Mean tokens of an answer, from half to one and a half of it.
        seed: Of the draws.
    """

    requests: int = 2000
    rate: float = 4.0
    docs: int = 2655
    k: int = 5
    zipf: float = 1.0
    doc: int = 400
    system: int = 256
    question: int = 40
    output: int = 150
    seed: int = 0

    def trace(self) -> Trace:
        """Make the requests."""
        rng = Random(f"rag {self.seed}")
        lengths = [
            max(1, int(self.doc * (0.5 + rng.random()))) for _ in range(self.docs)
        ]
        weights = [(rank + 1) ** -self.zipf for rank in range(self.docs)]
        cumulated = list(accumulate(weights))
        ids: dict[tuple[object, ...], int] = {}
        requests, now_s = [], 0.0
        for number in range(self.requests):
            drawn: dict[int, None] = {}
            while len(drawn) < self.k:
                drawn[rng.choices(range(self.docs), cum_weights=cumulated)[0]] = None
            output = max(1, int(self.output * (0.5 + rng.random())))
            blocks, prompt = self._blocks(number, tuple(drawn), lengths, ids)
            requests.append(TraceRequest(now_s, prompt, output, blocks))
            now_s += rng.expovariate(self.rate)
        return Trace(PREFIX.rstrip(":"), BLOCK_SIZE, tuple(requests))

    def _blocks(
        self,
        number: int,
        drawn: tuple[int, ...],
        lengths: list[int],
        ids: dict[tuple[object, ...], int],
    ) -> tuple[tuple[int, ...], int]:
        """Return the ids of the full blocks, and the length of the prompt."""
        ends = list(accumulate((self.system, *(lengths[one] for one in drawn))))
        prompt = ends[-1] + self.question
        blocks, num_parts = [], 0
        for block in range(prompt // BLOCK_SIZE):
            while num_parts < len(ends) and ends[num_parts] < (block + 1) * BLOCK_SIZE:
                num_parts += 1
            # With all documents passed, the block has something of the question.
            own = number if num_parts == len(ends) else -1
            key = (block, own, drawn[:num_parts])
            blocks.append(ids.setdefault(key, len(ids)))
        return tuple(blocks), prompt


_LIMITS: Final[dict[str, tuple[Callable[[str], float], float, float]]] = {
    "requests": (int, 1, 10**6),
    "rate": (float, 1e-6, 1e6),
    "docs": (int, 1, 10**6),
    "k": (int, 1, 1000),
    "zipf": (float, 0.0, 10.0),
    "doc": (int, 1, 10**6),
    "system": (int, 0, 10**6),
    "question": (int, 1, 10**6),
    "output": (int, 1, 10**6),
    "seed": (int, 0, 10**9),
}


def read_rag(text: str) -> Trace:
    """Make the load that *text*, such as ``rag:k=8,zipf=1.2``, asks for.

    Raises:
        TraceError: It asks for something else.
    """
    values: dict[str, float] = {}
    for part in filter(None, text.removeprefix(PREFIX).split(",")):
        name, _, value = part.partition("=")
        if name not in _LIMITS:
            raise TraceError(
                f"{PREFIX} unknown key {name!r} (known: {', '.join(_LIMITS)})"
            )
        read, least, most = _LIMITS[name]
        try:
            values[name] = read(value)
        except ValueError:
            values[name] = least - 1
        if not least <= values[name] <= most:
            raise TraceError(
                f"{PREFIX} {name} is {value!r} (allowed: {least:g} to {most:g})"
            )
    load = msgspec.convert(values, RagLoad)
    if load.k > load.docs:
        raise TraceError(f"{PREFIX} k is {load.k} (allowed: at most docs, {load.docs})")
    return load.trace()
