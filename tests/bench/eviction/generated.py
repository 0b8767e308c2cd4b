"""Request traces that are made up: kinds of load that nothing was tuned on."""

import random
from itertools import accumulate, count

from traces import Request, with_turns

NUM_REQUESTS = 12_000
RATE_PER_S = 4.0
SEED = 7


class Chains:
    """Ids of blocks by their chain of contents."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, object], int] = {}

    def of(self, contents: list[object]) -> list[int]:
        """Return the chained ids of *contents*."""
        parent, blocks = -1, []
        for content in contents:
            parent = self._ids.setdefault((parent, content), len(self._ids))
            blocks.append(parent)
        return blocks


def rag() -> list[Request]:
    """Questions over documents with Zipf popularity, three a prompt, best first.

    A prompt is 4 blocks of instructions, three documents of 2 to 16 blocks, and a
    question of its own. Only equal documents in equal order share blocks.
    """
    rng, chains, questions = random.Random(SEED), Chains(), count()
    sizes = [rng.randint(2, 16) for _ in range(3000)]
    weights = list(accumulate(1.0 / rank for rank in range(1, 3001)))
    requests = []
    for number in range(NUM_REQUESTS):
        contents: list[object] = [("system", i) for i in range(4)]
        for document in rng.choices(range(3000), cum_weights=weights, k=3):
            contents += [(document, i) for i in range(sizes[document])]
        contents.append(("question", next(questions)))
        requests.append(Request(number / RATE_PER_S, chains.of(contents)))
    return requests


def scans() -> list[Request]:
    """Chats of a loyal crowd, every third request a long document seen once."""
    rng, chains, documents = random.Random(SEED), Chains(), count()
    histories: dict[int, int] = {}
    requests = []
    for number in range(NUM_REQUESTS):
        if number % 3 == 0:
            document = next(documents)
            contents: list[object] = [
                ("scan", document, i) for i in range(rng.randint(20, 120))
            ]
        else:
            user = min(int(rng.expovariate(1 / 80)), 400)
            length = histories.get(user, 6) + rng.randint(1, 3)
            histories[user] = length if length < 60 else 6
            contents = [("chat", user, number if length < 10 else 0)]
            contents += [("turn", user, i) for i in range(length)]
        requests.append(Request(number / RATE_PER_S, chains.of(contents)))
    return with_turns(requests)


def phases() -> list[Request]:
    """Loops over long contexts, then popular prompts among noise, four times over."""
    rng, chains, noise = random.Random(SEED), Chains(), count()
    requests = []
    for number in range(NUM_REQUESTS):
        phase = number * 8 // NUM_REQUESTS
        if phase % 2 == 0:
            agent = number % 24
            grown = number // 24 % 60
            contents: list[object] = [(phase, agent, i) for i in range(60 + grown)]
        else:
            popular = int(rng.paretovariate(0.7))
            contents = [(phase, "prompt", popular, i) for i in range(12)]
            contents += [("noise", next(noise)) for _ in range(rng.randint(1, 24))]
        requests.append(Request(number / RATE_PER_S, chains.of(contents)))
    return requests
