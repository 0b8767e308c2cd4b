"""Rows times a weight, in the form that BLAS computes fastest.

With several rows OpenBLAS copies the weight into the order of its kernels first. Many
rows make up for that; for a few it takes longer than the product itself. Small
products it computes from where the numbers lie, and few rows go in such pieces.
"""

import math

import numpy as np

from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.scratch import Scratch

UNPACKED = 100**3
"""Multiplications of a product up to which OpenBLAS copies nothing."""

FEW_ROWS = 16
"""Rows up to which pieces are faster."""

_DEPTH = 64
"""Inputs, or outputs of a head, that go into one piece."""


def multiply(rows: F32, weight: F32, out: F32, scratch: Scratch) -> F32:
    """Return *rows* ``[T, inputs]`` times *weight* ``[inputs, outputs]`` in *out*."""
    count, inputs = rows.shape
    if not 1 < count <= FEW_ROWS or inputs % _DEPTH or not weight.size:
        return np.matmul(rows, weight, out=out)
    deep, wide = inputs // _DEPTH, -(-count * _DEPTH * weight.shape[1] // UNPACKED)
    while weight.shape[1] % wide:
        wide += 1
    parts = scratch.take("parts", deep, wide, count, weight.shape[1] // wide)
    np.matmul(
        rows.reshape(count, deep, 1, _DEPTH).transpose(1, 2, 0, 3),
        weight.reshape(deep, _DEPTH, wide, -1).swapaxes(1, 2),
        out=parts,
    )
    np.add.reduce(parts, axis=0, out=out.reshape(count, wide, -1).swapaxes(0, 1))
    return out


def multiply_head(rows: F32, head: F32, out: F32) -> F32:
    """Return *rows* ``[T, inputs]`` times *head* ``[outputs, inputs]`` in *out*."""
    count, outputs = out.shape
    size = math.gcd(outputs, _DEPTH)
    if not 1 < count <= FEW_ROWS or size < 16:
        return np.matmul(rows, head.T, out=out)
    pieces = head.reshape(-1, size, head.shape[1]).swapaxes(1, 2)
    np.matmul(rows, pieces, out=out.reshape(count, -1, size).swapaxes(0, 1))
    return out
