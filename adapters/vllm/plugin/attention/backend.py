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


def held_keys(kv_cache: Any, pages: Any) -> Any:
    """Return keys from a cache: rows, blocks, key heads, head size, tokens a block.

    The kernel's variant ``vec`` keeps the keys of a page transposed; the proof finds
    out whether this one does.
    """
    num_pages, num_heads, size, _ = kv_cache.size()
    keys = kv_cache.view(num_pages, num_heads, 2 * size, -1)[:, :, :size]
    return keys[pages].reshape(*pages.shape, num_heads, -1, size)


def attention_shares(query: Any, keys: Any, lengths: Any, scale: float) -> Any:
    """Return how much of its attention each head gives to each block.

    Args:
        query: Rows, queries a row, heads, head size.
        keys: Rows, blocks, key heads, head size, tokens a block.
        lengths: Tokens of each row that its last query sees.
        scale: Of the products.

    Returns:
        Rows, heads, blocks: the mean over a row's queries.
    """
    num_rows, num_queries, num_heads, head_size = query.shape
    _, num_blocks, num_groups, _, size = keys.shape
    keys = keys.permute(0, 2, 3, 1, 4).reshape(num_rows, num_groups, head_size, -1)
    asked = query.transpose(1, 2).reshape(num_rows, num_groups, -1, head_size)
    products = torch.matmul(asked.float() * scale, keys.float())
    products = products.view(num_rows, num_heads, num_queries, num_blocks * size)
    behind = torch.arange(num_queries - 1, -1, -1)
    seen = (lengths[:, None] - behind)[:, None, :, None]
    products.masked_fill_(torch.arange(num_blocks * size) >= seen, float("-inf"))
    shares = torch.softmax(products, -1).unflatten(-1, (num_blocks, size))
    return shares.sum(-1).mean(2)


def _tensors(batch: Batch) -> tuple[Any, Any, Any]:
    rows = batch.rows
    widest = max(len(row.pages) for row in rows)
    pages = torch.zeros(len(rows), widest, dtype=torch.long)
    for at, row in enumerate(rows):
        pages[at, : len(row.pages)] = torch.from_numpy(row.pages)
    picked = torch.stack([torch.arange(row.first, row.end) for row in rows])
    return picked, pages, torch.tensor([row.length for row in rows])
