"""A sequence whose heads each keep their own tokens in the same few pages."""

from collections.abc import Sequence

import numpy as np

from warmroute.adapters.embedded.budget.group_attention import attend_group
from warmroute.adapters.embedded.budget.private_pages import PrivatePages, page_slots
from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.kv_store import KVStore
from warmroute.policies.eviction.kept_tokens import KeptTokens
from warmroute.policies.eviction.token_base import TokenRule


class SlotAttention:
    """Evict token by token, in every layer and KV head by itself.

    A slot may hold any position, since keys are stored after RoPE, so the kept
    tokens of all heads are packed into ``ceil(capacity / block_size)`` pages and the
    sequence never needs another one.

    Args:
        rule: Chooses the victims.
        capacity: Tokens kept a head.
        store: The bytes of all pages.
        table: Pages that hold the sequence now; not used afterwards.
        private: Pages to keep it in, with *capacity* slots or more.
        num_tokens: Tokens in *table*.
        scores: ``[layers, kv_heads, num_tokens]``, attention received in the
            prefill; None where the rule does not ask for it.
    """

    __slots__ = ("_kept", "_pages", "_position", "_rule")

    def __init__(
        self,
        rule: TokenRule,
        capacity: int,
        store: KVStore,
        table: Sequence[int],
        private: Sequence[int],
        num_tokens: int,
        scores: F32 | None,
    ) -> None:
        kv_heads = len(store.keys[0])
        self._rule = rule
        self._pages = PrivatePages(store, private)
        self._position = num_tokens
        self._kept = [KeptTokens(rule, kv_heads, capacity) for _ in store.keys]
        if scores is None:
            scores = np.zeros((len(self._kept), kv_heads, num_tokens), np.float32)
        slots = page_slots(table, store.block_size)
        heads = np.arange(kv_heads)[:, None]
        for layer, kept in enumerate(self._kept):
            there = slots[kept.start(scores[layer, :, :num_tokens])]
            keys, values = store.keys[layer], store.values[layer]
            self._pages.fill(layer, keys[heads, there], values[heads, there])

    def __repr__(self) -> str:
        return f"<SlotAttention at {self._position}: {self._kept[0]!r}>"

    def attend(
        self, layer: int, inputs: F32, queries: F32, keys: F32, values: F32
    ) -> F32:
        """Store the new token in place of a victim, and attend to what is kept."""
        kept = self._kept[layer]
        self._pages.write(layer, kept.admit(self._position), keys, values)
        grouped = queries.reshape(len(keys), -1, queries.shape[-1])
        out, shares = attend_group(grouped, *self._pages.read(layer, kept.count))
        if self._rule.is_observed:
            kept.observe(shares.sum(axis=1))
        if layer == len(self._kept) - 1:
            self._position += 1
        return out.reshape(queries.shape)

    def close(self) -> None:
        """Hold nothing beside the pages."""
