"""vLLM's attention on CPU, with a look at what the blocks of a sequence receive.

The platform's kernel does the attention. Beside it, layers that were given a watch
compute the softmax of watched rows anew from their queries and cached keys, because
the kernel does not tell it. vLLM imports this module where the option asks for it;
without a watch, a layer does one comparison more.
"""

from typing import Any

import torch
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
)

from warmroute.adapters.vllm.plugin.attention.builder import ScoredBuilder
from warmroute.adapters.vllm.plugin.attention.shares import (
    attention_shares,
    held_keys,
)
from warmroute.adapters.vllm.plugin.attention.watch import Batch, Masses, Watch


class ScoredImpl(CPUAttentionBackendImpl):  # type: ignore[misc]
    """The platform's attention that lets a watch look."""

    watch: Watch | None = None

    def forward(
        self,
        layer: Any,
        query: Any,
        key: Any,
        value: Any,
        kv_cache: Any,
        attn_metadata: Any,
        *rest: Any,
        **options: Any,
    ) -> Any:
        """Attend as the platform does, then look."""
        answer = super().forward(
            layer, query, key, value, kv_cache, attn_metadata, *rest, **options
        )
        watch = self.watch
        if watch is not None and watch.batches and attn_metadata is not None:
            watch.look(lambda batch: self.measure(batch, query, kv_cache))
        return answer

    def measure(self, batch: Batch, query: Any, kv_cache: Any) -> Masses:
        """Return the share of attention that each block receives, heads averaged."""
        if batch.tensors is None:
            batch.tensors = _tensors(batch)
        picked, pages, lengths = batch.tensors
        shares = attention_shares(
            query[picked], held_keys(kv_cache, pages), lengths, self.scale
        )
        masses: Masses = shares.mean(1).numpy()
        return masses


class ScoredBackend(CPUAttentionBackend):  # type: ignore[misc]
    """The platform's backend with layers that can look."""

    @staticmethod
    def get_impl_cls() -> type[ScoredImpl]:
        """Return the class of its layers."""
        return ScoredImpl

    @staticmethod
    def get_builder_cls() -> type[ScoredBuilder]:
        """Return the class of what makes metadata, which proves the look first."""
        return ScoredBuilder


def _tensors(batch: Batch) -> tuple[Any, Any, Any]:
    rows = batch.rows
    widest = max(len(row.pages) for row in rows)
    pages = torch.zeros(len(rows), widest, dtype=torch.long)
    for at, row in enumerate(rows):
        pages[at, : len(row.pages)] = torch.from_numpy(row.pages)
    picked = torch.stack([torch.arange(row.first, row.end) for row in rows])
    return picked, pages, torch.tensor([row.length for row in rows])
