"""Perplexity of a text, per budget and method."""

from collections.abc import Sequence

import numpy as np
from fetching import Fetches
from forced import Forced, Ids
from methods import Setting

LOGIT_ROWS = 256
"""Rows whose logits are computed at a time: 50 MB for 49,152 words."""


class Outcome:
    """What one run showed.

    Args:
        losses: ``[texts, tokens - 1]``: surprise of each token but the first, nats.
        fetches: What was fetched.
    """

    def __init__(self, losses: np.ndarray, fetches: Fetches) -> None:
        self.losses = losses
        self.fetches = fetches

    def perplexity(self, first: int) -> float:
        """Return the perplexity of the tokens from position *first* on."""
        return float(np.exp(self.losses[:, first - 1 :].mean()))


def measure(forced: Forced, setting: Setting, texts: Ids) -> Outcome:
    """Run *texts* ``[texts, tokens]`` and score every token."""
    fetches = Fetches()
    kv_heads = forced.model.config.num_kv_heads
    rows, _ = forced.run(setting.attention(kv_heads, fetches), texts)
    losses = [
        token_losses(forced, of_text[:-1], text[1:])
        for of_text, text in zip(rows, texts, strict=True)
    ]
    return Outcome(np.array(losses), fetches)


def token_losses(
    forced: Forced, rows: np.ndarray, targets: Sequence[int]
) -> np.ndarray:
    """Return the surprise ``[n]`` of *targets* given the rows before them."""
    losses = []
    for at in range(0, len(rows), LOGIT_ROWS):
        logits = forced.model.logits(rows[at : at + LOGIT_ROWS])
        logits -= logits.max(axis=1, keepdims=True)
        wanted = np.asarray(targets[at : at + LOGIT_ROWS])
        right = logits[np.arange(len(logits)), wanted]
        losses.append(np.log(np.exp(logits).sum(axis=1)) - right)
    return np.concatenate(losses)
