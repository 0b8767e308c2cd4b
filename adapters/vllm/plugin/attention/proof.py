"""The proof that what is looked at is what the kernel does.

Two pages of a cache of its own get random keys, and values that name their page. So
what the platform's kernel answers are the shares of attention that it gave to each
page, head by head, and these must be those that a look finds. It fails where another
variant of the kernel keeps keys in another order. Run by the worker when it starts,
on its layers.
"""

from typing import Any

import torch
from vllm import _custom_ops as ops
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackendImpl,
    CPUAttentionMetadata,
)

from warmroute.adapters.vllm.plugin.attention.shares import (
    attention_shares,
    held_keys,
)

NUM_QUERIES = 3
ENOUGH = 0.02
"""Share that 16-bit floats may make; keys in another order are 0.2 away."""


def proof_fault(layer: Any, block_size: int, dtype: Any) -> str | None:
    """Say why a look at this layer does not find what its kernel does, if so."""
    impl = layer.impl
    if impl.is_fp8_kv_cache:
        return "keys are cached in 8 bits"
    if impl.logits_soft_cap or impl.sinks is not None:
        return "the model caps its attention, or has sinks of its own"
    told, found = _shares(impl, layer, block_size, dtype)
    error = float((told - found).abs().max())
    if error > ENOUGH:
        return (
            f"a look differs from the kernel ({layer.isa}) by {error:.2f} "
            f"(allowed: {ENOUGH})"
        )
    return None


def _shares(impl: Any, layer: Any, size: int, dtype: Any) -> tuple[Any, Any]:
    """Return the shares that the kernel gives, and those that a look finds."""
    length = size + size // 2
    chance = torch.Generator().manual_seed(0)
    shape = (impl.num_kv_heads, impl.head_size)
    keys = torch.randn(length, *shape, generator=chance).to(dtype)
    query = torch.randn(NUM_QUERIES, impl.num_heads, impl.head_size, generator=chance)
    query = (2 * query).to(dtype)
    values = torch.zeros(length, *shape, dtype=dtype)
    values[:size, :, 0] = 1
    values[size:, :, 1] = 1
    cache = torch.zeros(3, shape[0], size, 2 * shape[1], dtype=dtype)
    slots = torch.arange(length)
    slots = torch.where(slots < size, slots + 2 * size, slots)  # pages 2 and 1
    impl.do_kv_cache_update(layer, keys, values, cache, slots)
    metadata = _metadata(impl, layer, length, slots, dtype)
    output = torch.zeros_like(query)
    CPUAttentionBackendImpl.forward(
        impl, layer, query, keys, values, cache, metadata, output
    )
    pages, lengths = torch.tensor([[2, 1]]), torch.tensor([length])
    found = attention_shares(query[None], held_keys(cache, pages), lengths, impl.scale)
    return output[:, :, :2].float().mean(0), found[0]


def _metadata(impl: Any, layer: Any, length: int, slots: Any, dtype: Any) -> Any:
    starts = torch.tensor([0, NUM_QUERIES], dtype=torch.int32)
    lengths = torch.tensor([length], dtype=torch.int32)
    plan = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=1,
        num_heads=impl.num_heads,
        num_kv_heads=impl.num_kv_heads,
        head_dim=impl.head_size,
        seq_lens=lengths,
        dtype=dtype,
        query_start_loc=starts,
        causal=True,
        sliding_window_size=-1,
        isa=layer.isa,
        enable_kv_split=False,
    )
    return CPUAttentionMetadata(
        num_actual_tokens=NUM_QUERIES,
        max_query_len=NUM_QUERIES,
        query_start_loc=starts,
        max_seq_len=length,
        seq_lens=lengths,
        block_table=torch.tensor([[2, 1]], dtype=torch.int32),
        slot_mapping=slots,
        scheduler_metadata=plan,
    )
