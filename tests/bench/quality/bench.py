"""What every task of the bench works with."""

import sys
from dataclasses import dataclass

from corpora import Corpora
from forced import Forced
from forced import Ids as Ids

from warmroute.adapters.tokens.tokenizer import ChatTokenizer

ALPHA = 10.0
"""InfiniGen's alpha here and in the engine; the paper's is `PAPER_ALPHA`."""

PAPER_ALPHA = 5.0


@dataclass(frozen=True)
class Bench:
    """Hold the model, the data, and how much of them is wanted.

    Args:
        forced: Runs the model.
        tokenizer: Its tokenizer.
        corpora: The data.
        sequences: Texts of a perplexity.
        items: Items of a task.
        share: Budget as a share of the text.
        methods: Those that are compared with the full cache.
        minutes: How long a task of items may take.
    """

    forced: Forced
    tokenizer: ChatTokenizer
    corpora: Corpora
    sequences: int
    items: int
    share: float
    methods: tuple[str, ...]
    minutes: float

    def encode(self, text: str) -> list[int]:
        """Return the token ids of *text*, without special ones."""
        return self.tokenizer.encode(text, add_special=False)


def say(message: str) -> None:
    """Tell how far the bench is."""
    print(message, file=sys.stderr, flush=True)
