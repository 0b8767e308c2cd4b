"""A sequence whose heads each keep their own tokens in the same few pages."""

import numpy as np

from warmroute.adapters.embedded.budget.computed_prompt import ComputedPrompt
from warmroute.adapters.embedded.budget.group_attention import attend_group
from warmroute.adapters.embedded.budget.private_pages import PrivatePages
from warmroute.adapters.embedded.model.arrays import F32
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
        prompt: The sequence so far; not used afterwards.
        pages: Pages to keep it in, with *capacity* slots or more.
    """

    __slots__ = ("_kept", "_pages", "_position", "_rule")

    def __init__(
        self,
        rule: TokenRule,
        capacity: int,
        prompt: ComputedPrompt,
        pages: PrivatePages,
    ) -> None:
        self._rule = rule
        self._pages = pages
        self._position = prompt.num_tokens
        self._kept: list[KeptTokens] = []
        for layer in range(len(prompt.store.keys)):
            keys, values, scores = prompt.layer(layer)
            kept = KeptTokens(rule, len(keys), capacity)
            chosen = kept.start(scores)[:, :, None]
            pages.fill(
                layer,
                np.take_along_axis(keys, chosen, axis=1),
                np.take_along_axis(values, chosen, axis=1),
            )
            self._kept.append(kept)

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
