"""What came of one request in a replay."""

from typing import NamedTuple

from warmroute.proxy.ledger.tokens import Classes


class Served(NamedTuple):
    """Where a request was served, what it found there, and how long it took.

    Attributes:
        backend: Number of the engine.
        prompt_tokens: Length of the prompt.
        cached_tokens: The part that was cached there.
        ttft_s: Seconds from the arrival to the first token.
        classes: The ledger's classes of the prompt tokens.
        tpot_s: Seconds a token of the answer behind the first; None of one token.
        duration_s: Seconds from the arrival to the end of the answer.
    """

    backend: int
    prompt_tokens: int
    cached_tokens: int
    ttft_s: float
    classes: Classes
    tpot_s: float | None
    duration_s: float
