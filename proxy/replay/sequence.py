"""One request on a simulated engine."""

from math import nan

from warmroute.policies.routing.load import Reservation
from warmroute.proxy.replay.arrival import Arrival


class Sequence:
    """What an engine keeps of a request.

    Args:
        arrival: The request, and who wants to hear of its end.
        path: The segments of its prompt.
        block_size: Tokens a block.

    Attributes:
        target: Tokens to compute before the next one comes: the prompt, and after a
            preemption what was generated.
        position: How many of them are computed or were cached.
        num_blocks: Full blocks of the prompt.
        num_stored: Those that are in the memory.
        reached: Place in *path* of the segment that is held; -1 is none.
        cached_tokens: What was cached at the first admission.
        generated: Tokens generated before the last preemption.
        started_step: Step of the engine at which it began to decode.
        finish_step: Step of the engine that will give its last token.
        first_token_at: When the first token came.
        reservation: The load that it is for the router.
        backend: Number of the engine.
        predicted_tokens: What the router expected to be cached.
        best_tokens: The most that it saw anywhere.
        seen_tokens: What was ever sent before.
    """

    __slots__ = (
        "arrival",
        "backend",
        "best_tokens",
        "cached_tokens",
        "finish_step",
        "first_token_at",
        "generated",
        "num_blocks",
        "num_stored",
        "path",
        "position",
        "predicted_tokens",
        "reached",
        "reservation",
        "seen_tokens",
        "started_step",
        "target",
    )

    def __init__(self, arrival: Arrival, path: list[int], block_size: int) -> None:
        request = arrival.request
        self.arrival = arrival
        self.path = path
        self.target = request.prompt_tokens
        self.num_blocks = request.prompt_tokens // block_size
        self.position = self.num_stored = self.generated = 0
        self.reached = -1
        self.cached_tokens: int | None = None
        self.started_step = self.finish_step = 0
        self.first_token_at = nan
        self.reservation: Reservation | None = None
        self.backend = self.predicted_tokens = 0
        self.best_tokens = self.seen_tokens = 0

    def __repr__(self) -> str:
        return f"<Sequence {self.position} of {self.target} tokens>"
