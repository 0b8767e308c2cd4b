"""The settings of an embedded engine, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from warmroute.policies.errors import ConfigError

if TYPE_CHECKING:
    from warmroute.adapters.embedded.budget.options import BudgetOptions

_MINIMUM = {
    "num_blocks": 1,
    "block_size": 1,
    "max_num_seqs": 1,
    "max_batched_tokens": 1,
    "max_shared_tokens": 1,
    "host_blocks": 0,
    "max_waiting": 1,
    "threads": 1,
}


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Hold what an engine is started with.

    Args:
        num_blocks: Blocks of KV that sequences may use, the null page not counted.
        block_size: Tokens a block.
        max_num_seqs: Sequences that run at the same time; a request takes ``n``.
        max_batched_tokens: Tokens computed in one step, over all sequences.
        max_shared_tokens: The same where sequences wait for one another: only what
            comes first in a step, decodes before prompts, may go beyond it.
        eviction: Name of the block eviction policy.
        host_blocks: Blocks of the host tier; 0 leaves it out.
        max_model_len: Longest sequence, prompt and output together; None is the
            longest that the model and the blocks allow.
        budget: Token budget of requests that bring none; None keeps every token.
        max_waiting: Requests that may queue; one more is refused with 429.
        threads: Cores that compute a step; beyond one, each has a process.

    Raises:
        ConfigError: A number is too small, or a step has no room for one token of
            each sequence.
    """

    num_blocks: int = 512
    block_size: int = 16
    max_num_seqs: int = 16
    max_batched_tokens: int = 2048
    max_shared_tokens: int = 512
    eviction: str = "lru"
    host_blocks: int = 0
    max_model_len: int | None = None
    budget: BudgetOptions | None = None
    max_waiting: int = 10_000
    threads: int = 1

    def __post_init__(self) -> None:
        for name, least in _MINIMUM.items():
            value = getattr(self, name)
            if value < least:
                raise ConfigError(f"{name} is {value} (allowed: {least} or more)")
        for name in ("max_batched_tokens", "max_shared_tokens"):
            if getattr(self, name) < self.max_num_seqs:
                raise ConfigError(
                    f"{name} is {getattr(self, name)} (allowed: max_num_seqs, which "
                    f"is {self.max_num_seqs}, or more: a step computes one token of "
                    f"each running sequence)"
                )

    @property
    def num_pages(self) -> int:
        """Pages of the store: page 0 is the null page, which is no block."""
        return self.num_blocks + 1

    def longest(self, max_positions: int) -> int:
        """Return the longest sequence in tokens that this engine takes.

        Raises:
            ConfigError: ``max_model_len`` is more than model or blocks can hold.
        """
        capacity = self.num_blocks * self.block_size
        most = min(capacity, max_positions)
        if self.max_model_len is None:
            return most
        if not 2 <= self.max_model_len <= most:
            raise ConfigError(
                f"max_model_len is {self.max_model_len} (allowed: 2 to {most}: the "
                f"model knows {max_positions} positions, {self.num_blocks} blocks "
                f"of {self.block_size} hold {capacity} tokens); lower it, or give "
                f"the engine more blocks"
            )
        return self.max_model_len
