"""Attention of one token over the keys that its sequence kept."""

import numpy as np

from warmroute.adapters.embedded.model.arrays import F32


def attend_group(queries: F32, keys: F32, values: F32) -> tuple[F32, F32]:
    """Attend with the query heads of each group over its KV head's tokens.

    Args:
        queries: ``[kv_heads, group, d]`` after RoPE, not scaled.
        keys: ``[kv_heads, n, d]`` after RoPE.
        values: ``[kv_heads, n, d]``.

    Returns:
        The output ``[kv_heads, group, d]`` and the probabilities
        ``[kv_heads, group, n]``.
    """
    shares: F32 = queries @ keys.swapaxes(1, 2)
    shares *= np.float32(queries.shape[-1] ** -0.5)
    shares -= shares.max(axis=2, keepdims=True)
    np.exp(shares, out=shares)
    shares /= shares.sum(axis=2, keepdims=True)
    out: F32 = shares @ values
    return out, shares
