"""What the blocks of a sequence receive of its attention, from queries and keys."""

from typing import Any

import torch


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
