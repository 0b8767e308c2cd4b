"""The seam between the engine and token eviction inside a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from warmroute.adapters.embedded.engine.request import EngineRefused
from warmroute.adapters.embedded.engine.sequence import (
    BudgetedAttention,
    Sequence,
    SequenceGroup,
)
from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.kv_store import KVStore
from warmroute.adapters.embedded.model.llama import Llama
from warmroute.policies.kv.pool import BlockPool

if TYPE_CHECKING:
    from warmroute.adapters.embedded.budget.options import BudgetOptions


class BudgetRules(Protocol):
    """Token eviction as the engine needs it."""

    def is_whole(self, options: BudgetOptions) -> bool:
        """Tell whether nothing is ever evicted, so that pages may do."""
        ...

    def is_observed(self, options: BudgetOptions) -> bool:
        """Tell whether the attention received during the prefill is needed."""
        ...

    def pages_needed(
        self, options: BudgetOptions, num_prompt: int, max_tokens: int, block_size: int
    ) -> int:
        """Count the private pages of a sequence.

        Args:
            options: The budget.
            num_prompt: Tokens computed when it starts.
            max_tokens: Most tokens that the sequence can ever have.
            block_size: Slots a page.
        """
        ...

    def start(
        self,
        options: BudgetOptions,
        model: Llama,
        store: KVStore,
        table: list[int],
        private: list[int],
        num_tokens: int,
        scores: F32 | None,
    ) -> BudgetedAttention:
        """Move a computed sequence into its private pages.

        Args:
            options: The budget.
            model: Whose keys and values they are.
            store: The bytes of all pages.
            table: Pages that hold the sequence; only to be read, and not kept.
            private: As many pages as `pages_needed` said, to write at will.
            num_tokens: Tokens in *table*.
            scores: ``[layers, kv_heads, num_tokens]``: attention that each token
                received in the prefill; None unless `is_observed`.
        """
        ...


class TokenBudgets:
    """Put sequences under their token budget, once their tokens are computed.

    Args:
        rules: Token eviction.
        model: The model.
        store: The bytes of all pages.
        pool: The pages.
    """

    __slots__ = ("_model", "_pool", "_rules", "_store")

    def __init__(
        self, rules: BudgetRules, model: Llama, store: KVStore, pool: BlockPool
    ) -> None:
        self._rules = rules
        self._model = model
        self._store = store
        self._pool = pool

    def __repr__(self) -> str:
        return f"<TokenBudgets by {type(self._rules).__name__}>"

    def effective(self, options: BudgetOptions | None) -> BudgetOptions | None:
        """Return the budget, None when it keeps every token."""
        if options is None or self._rules.is_whole(options):
            return None
        return options

    def is_observed(self, options: BudgetOptions | None) -> bool:
        """Tell whether the prefill must gather scores for this budget."""
        return options is not None and self._rules.is_observed(options)

    def pages_needed(self, sequence: Sequence) -> int:
        """Count the private pages of one sequence; 0 without a budget."""
        return self._private(sequence, len(sequence.tokens))

    def check(self, group: SequenceGroup, num_blocks: int) -> None:
        """Refuse a budget that leaves no room to compute the prompt; O(1).

        Prompt and private pages are held together for a moment, by all choices at
        the start and by each alone after a preemption.

        Raises:
            EngineRefused: The blocks of the engine would never suffice.
        """
        if group.budget is None:
            return
        first, size = group.sequences[0], self._store.block_size
        prompt, longest = len(first.tokens), _longest(first)
        needed = max(
            -(-prompt // size) + self.pages_needed(first) * len(group.sequences),
            -(-longest // size) + self._private(first, longest),
        )
        if needed > num_blocks:
            raise EngineRefused(
                "kv_budget_too_large",
                f"prompt and token budget need {needed} blocks together for a moment "
                f"(allowed: {num_blocks}); lower the budget, n or max_tokens, or "
                f"shorten the prompt",
                "kv_budget",
            )

    def observe(self, sequence: Sequence) -> None:
        """Give a sequence the scores that its prefill adds to, where needed."""
        if sequence.group.is_observed and sequence.scores is None:
            config = self._model.config
            shape = (config.num_layers, config.num_kv_heads, len(sequence.tokens))
            sequence.scores = np.zeros(shape, np.float32)

    def start(self, sequence: Sequence) -> None:
        """Move a computed sequence into its private pages and free the others.

        No effect on one without a budget or already under it.
        """
        options = sequence.group.budget
        if options is None or sequence.budgeted is not None:
            return
        sequence.budgeted = self._rules.start(
            options,
            self._model,
            self._store,
            sequence.table.pages,
            sequence.private.pages,
            sequence.num_computed,
            sequence.scores,
        )
        sequence.scores = None
        sequence.table.free(self._pool)

    def _private(self, sequence: Sequence, num_computed: int) -> int:
        options = sequence.group.budget
        if options is None:
            return 0
        size = sequence.table.block_size
        return self._rules.pages_needed(options, num_computed, _longest(sequence), size)


def _longest(sequence: Sequence) -> int:
    return len(sequence.group.request.prompt_ids) + sequence.choice.max_tokens
