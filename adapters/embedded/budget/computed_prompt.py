"""A computed prompt, in pages that will be given back."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from warmroute.adapters.embedded.budget.private_pages import page_slots
from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.kv_store import KVStore


@dataclass(frozen=True, slots=True)
class ComputedPrompt:
    """Say where a prompt lies, and what attention its tokens received.

    Args:
        store: The bytes of all pages.
        table: Pages of the prompt; only read.
        num_tokens: Tokens in *table*.
        scores: ``[layers, kv_heads, >= num_tokens]``, attention received in the
            prefill; None where nobody asks for it.
    """

    store: KVStore
    table: Sequence[int]
    num_tokens: int
    scores: F32 | None

    def layer(self, layer: int) -> tuple[F32, F32, F32]:
        """Copy out one layer.

        Returns:
            Keys and values ``[kv_heads, num_tokens, d]``, and the attention received
            ``[kv_heads, num_tokens]``, zeros where it is not known.
        """
        slots = page_slots(self.table, self.store.block_size)[: self.num_tokens]
        keys, values = self.store.keys[layer], self.store.values[layer]
        scores = np.zeros((len(keys), self.num_tokens), np.float32)
        if self.scores is not None:
            scores[:] = self.scores[layer, :, : self.num_tokens]
        return keys.take(slots, axis=1), values.take(slots, axis=1), scores
