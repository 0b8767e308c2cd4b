"""What one running sequence may hold, and what it has to give back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from warmroute.adapters.vllm.plugin.ports import Block, Pool

NEVER = 1 << 62
"""Blocks said to be cached already, so that vLLM caches no more of a sequence."""

ALL = 1 << 62
"""Blocks that a sequence may hold when it need not give any back."""


class Manager(Protocol):
    """Which blocks each request has (``FullAttentionManager``)."""

    block_size: int
    block_pool: Pool
    req_to_blocks: dict[str, list[Block]]
    num_cached_block: dict[str, int]


class Running(Protocol):
    """A request that is being run."""

    request_id: str
    num_computed_tokens: int
    num_prompt_tokens: int
    num_tokens_with_spec: int


class Limit:
    """Hold what one request may hold, and what it gave back.

    Attributes:
        num_first: Blocks at the head that stay.
        num_held: Most blocks held.
        is_scored: Whether attention chooses what goes.
        is_copied: Whether what goes is copied to host memory.
        num_given: Blocks given back and not brought back since.
    """

    __slots__ = (
        "is_copied",
        "is_scored",
        "num_first",
        "num_given",
        "num_held",
        "num_looked",
    )

    def __init__(
        self,
        num_first: int,
        num_held: int,
        is_scored: bool = False,
        is_copied: bool = False,
    ) -> None:
        self.num_first = num_first
        self.num_held = num_held
        self.is_scored = is_scored
        self.is_copied = is_copied
        self.num_given = 0
        self.num_looked = 0

    def __repr__(self) -> str:
        return f"<Limit [Blocks: {self.num_held}, given back: {self.num_given}]>"

    def is_new(self, needed: int) -> bool:
        """Whether there is a block more than when this was last asked."""
        is_new, self.num_looked = self.num_looked != needed, needed
        return is_new

    def settle(self, is_anew: bool) -> None:
        """Forget what was given back by a request that was computed *anew* since."""
        if self.num_given and is_anew:
            self.num_given = self.num_looked = 0

    def look_again(self) -> None:
        """Have the next `is_new` be true."""
        self.num_looked = 0


@dataclass(frozen=True, slots=True)
class Over:
    """Say how many of which blocks a request has to give back."""

    name: str
    limit: Limit
    blocks: Sequence[int]
    count: int


def num_needed(request: Running, block_size: int) -> int:
    """Count the blocks of a sequence, the one that its next token goes to included."""
    return request.num_computed_tokens // block_size + 1


def has_holes(manager: Manager, name: str) -> bool:
    """Whether a request has given back blocks since it was computed last.

    An end and a preemption both have vLLM forget it.
    """
    return manager.num_cached_block.get(name) == NEVER
