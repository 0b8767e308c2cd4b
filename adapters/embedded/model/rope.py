"""Rotary position embedding as a product of complex numbers.

Su et al. 2021 (RoFormer), section 3.4. Numbers 2i and 2i+1 of a head are the real
and imaginary part of pair i, the layout of the paper and of GGUF files. Hugging Face
files keep pair i at i and i + head_dim/2, and are put into this order when they are
loaded. One product in place then turns all heads of all tokens.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from warmroute.adapters.embedded.model.arrays import C64, F32, Rows
from warmroute.adapters.embedded.model.config import LlamaConfig
from warmroute.adapters.tokens.errors import ModelError


class Rotary:
    """The turns of all positions, kept as a table that grows as needed.

    Args:
        config: Gives the base, the divisors and the width of a head.
    """

    __slots__ = ("_frequencies", "_table")

    def __init__(self, config: LlamaConfig) -> None:
        exponents = np.arange(0, config.head_dim, 2) / config.head_dim
        frequencies = config.rope_theta**-exponents
        if config.rope_divisors:
            frequencies /= config.rope_divisors
        self._frequencies = frequencies
        self._table: C64 = np.empty((0, len(frequencies)), np.complex64)

    def turns(self, positions: Rows) -> C64:
        """Return the unit numbers ``[T, head_dim/2]`` of *positions* ``[T]``."""
        last, table = int(positions.max(initial=0)), self._table
        if last >= len(table):
            table = self._table = self._made(max(2 * len(table), last + 1))
        return table[positions]

    def _made(self, count: int) -> C64:
        angles = np.outer(np.arange(count), self._frequencies)
        table: C64 = np.exp(1j * angles).astype(np.complex64)
        return table


def rotate(heads: F32, turns: C64) -> None:
    """Turn *heads* ``[T, n, head_dim]`` in place; the last axis is contiguous."""
    pairs = heads.view(np.complex64)
    pairs *= turns[:, None, :]


def pair_up(weight: F32, num_heads: int) -> F32:
    """Reorder rows ``[heads * d, hidden]`` from halves to neighbouring pairs."""
    rows, hidden = weight.shape
    halves = weight.reshape(num_heads, 2, rows // num_heads // 2, hidden)
    return halves.swapaxes(1, 2).reshape(rows, hidden)


def read_divisors(
    scaling: Mapping[str, Any] | None, theta: float, head_dim: int, name: str
) -> tuple[float, ...]:
    """Return what ``rope_scaling`` of a config.json divides the frequencies by.

    Raises:
        ModelError: A kind of scaling that is not ``default``, ``linear`` or
            ``llama3``, or one without its numbers.
    """
    scaling = scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    try:
        if kind == "default":
            return ()
        if kind == "linear":
            return (float(scaling["factor"]),) * (head_dim // 2)
        if kind == "llama3":
            return _llama3_divisors(scaling, theta, head_dim)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelError(
            f"{name}: rope scaling {kind!r} lacks a usable {error} in {dict(scaling)}"
        ) from error
    raise ModelError(
        f"{name}: rope scaling {kind!r} is not supported (allowed: default, linear, "
        "llama3); choose a model without it"
    )


def _llama3_divisors(
    scaling: Mapping[str, Any], theta: float, head_dim: int
) -> tuple[float, ...]:
    """Blend from the full factor for slow pairs to none for fast ones."""
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    original = float(scaling["original_max_position_embeddings"])
    exponents = np.arange(0, head_dim, 2) / head_dim
    turns_in_context = original * theta**-exponents / (2 * math.pi)
    kept = np.clip((turns_in_context - low) / (high - low), 0.0, 1.0)
    return tuple((1 / (kept + (1 - kept) / factor)).tolist())
