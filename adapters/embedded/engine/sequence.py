"""One sequence in the engine: tokens, pages, how far it is computed."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, Protocol

from warmroute.adapters.embedded.engine.choice import Choice
from warmroute.adapters.embedded.engine.request import GenerationRequest
from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.batch import SequenceAttention
from warmroute.policies.kv.block_table import BlockTable
from warmroute.policies.kv.blocks import hash_tokens
from warmroute.policies.kv.pool import BlockPool

if TYPE_CHECKING:
    from warmroute.adapters.embedded.budget.options import BudgetOptions
    from warmroute.adapters.embedded.engine.stream import RequestStream


class BudgetedAttention(SequenceAttention, Protocol):
    """Attention of a sequence that decodes under a token budget."""

    def close(self) -> None:
        """Let go of what it holds beside its private pages."""
        ...


class SequenceGroup:
    """The sequences of one request, which share its prompt.

    Until the prompt is computed there is only the first; then it is forked.

    Args:
        request: As submitted and checked.
        arrival: Number that rises with each request.
        submitted_s: Time of submission on the engine's clock.
        root: Seed of its block hashes.
        choices: One for each sequence.
        block_size: Tokens a block.
        budget: Token budget in force, None to keep every token.
        is_observed: Whether the budget needs the attention that each token of the
            prompt receives, so that all of it is computed.
    """

    __slots__ = (
        "arrival",
        "budget",
        "is_forked",
        "is_observed",
        "num_cached_tokens",
        "request",
        "root",
        "sequences",
        "stream",
        "submitted_s",
    )

    def __init__(
        self,
        request: GenerationRequest,
        arrival: int,
        submitted_s: float,
        root: int,
        choices: Items[Choice],
        block_size: int,
        budget: BudgetOptions | None = None,
        is_observed: bool = False,
    ) -> None:
        self.request = request
        self.arrival = arrival
        self.submitted_s = submitted_s
        self.root = root
        self.budget = budget
        self.is_observed = is_observed
        self.is_forked = len(choices) == 1
        self.num_cached_tokens: int | None = None
        self.stream: weakref.ref[RequestStream] | None = None
        self.sequences = [Sequence(self, one, block_size) for one in choices]

    def __repr__(self) -> str:
        return f"<SequenceGroup {self.request.request_id}: {self.sequences}>"

    @property
    def is_finished(self) -> bool:
        """Tell whether every choice has ended."""
        return all(one.is_finished for one in self.sequences)


class Sequence:
    """A prompt with the tokens generated behind it.

    Tokens from `num_computed` on have no keys and values yet: all of the prompt at
    first, the last one while decoding. A preempted sequence starts over with 0.

    Args:
        group: The request that it belongs to.
        choice: Its output.
        block_size: Tokens a block.
    """

    __slots__ = (
        "_hashes",
        "budgeted",
        "choice",
        "group",
        "key",
        "last_token_s",
        "num_computed",
        "num_registered",
        "private",
        "scores",
        "table",
        "tokens",
    )

    def __init__(self, group: SequenceGroup, choice: Choice, block_size: int) -> None:
        self.group = group
        self.choice = choice
        self.key = (group.request.priority, group.arrival, choice.index)
        self.tokens = array("I", group.request.prompt_ids)
        self.num_computed = 0
        self.num_registered = 0
        self.table = BlockTable(block_size)
        self.private = BlockTable(block_size)
        self.scores: F32 | None = None
        self.budgeted: BudgetedAttention | None = None
        self.last_token_s: float | None = None
        self._hashes: list[int] = []

    def __repr__(self) -> str:
        return (
            f"<Sequence {self.group.request.request_id}/{self.choice.index}: "
            f"{self.num_computed} of {len(self.tokens)} tokens computed>"
        )

    @property
    def is_finished(self) -> bool:
        """Tell whether its choice has ended."""
        return self.choice.finish_reason is not None

    @property
    def outstanding(self) -> int:
        """Tokens that are known and not computed."""
        return len(self.tokens) - self.num_computed

    @property
    def missing(self) -> int:
        """Tokens that have no slot yet."""
        if self.budgeted is not None:
            return 0
        return len(self.tokens) - self.table.num_tokens

    @property
    def seats(self) -> int:
        """Sequences that it stands for: all of its request before the fork."""
        group = self.group
        return 1 if group.is_forked else len(group.sequences)

    def block_hashes(self, count: int) -> list[int]:
        """Return the hashes of its first *count* full blocks; extends a chain."""
        size, hashes = self.table.block_size, self._hashes
        if len(hashes) < count:
            last = hashes[-1] if hashes else self.group.root
            fresh = self.tokens[len(hashes) * size : count * size]
            hashes += hash_tokens(fresh, size, last)
        return hashes[:count]

    def release(self, pool: BlockPool) -> None:
        """Give every page back and forget what was computed."""
        if self.budgeted is not None:
            self.budgeted.close()
            self.budgeted = None
        self.table.free(pool)
        self.private.free(pool)
        self.scores = None
        self.num_computed = 0
        self.num_registered = 0
