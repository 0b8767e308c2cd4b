"""A Llama-like model in NumPy: RMSNorm, RoPE, grouped-query attention, SwiGLU.

Touvron et al. 2023 (LLaMA), section 2.2; Ainslie et al. 2023 (GQA). Float32. All
tokens of a step go through one product a weight, whichever sequence they are of.
"""

import numpy as np

from warmroute.adapters.embedded.model.arrays import C64, F32, I32, Rows
from warmroute.adapters.embedded.model.attention import Attention
from warmroute.adapters.embedded.model.batch import Batch
from warmroute.adapters.embedded.model.config import LlamaConfig
from warmroute.adapters.embedded.model.kv_store import KVStore
from warmroute.adapters.embedded.model.paged_step import PagedStep
from warmroute.adapters.embedded.model.rope import Rotary, rotate
from warmroute.adapters.embedded.model.weights import LlamaWeights

_MLP_ROWS = 64
"""Rows of the MLP's activation at a time: they stay in the processor's cache."""

_FEW_ROWS = 4
"""Up to here a product a row is faster than one for all, which copies the weights."""


class Llama:
    """The model; for one thread at a time, since scratch memory is shared.

    Args:
        config: Its shape.
        weights: As `fuse_weights` makes them.
    """

    __slots__ = ("_attention", "_rotary", "config", "weights")

    def __init__(self, config: LlamaConfig, weights: LlamaWeights) -> None:
        self.config = config
        self.weights = weights
        self._rotary = Rotary(config)
        self._attention = Attention(config)

    def __repr__(self) -> str:
        size = self.weights.nbytes / 4e6
        return f"<Llama {self.config.name}: {size:.0f} M numbers>"

    def forward(self, batch: Batch, store: KVStore) -> F32:
        """Compute a step: store its keys and values, return the wanted logits.

        Returns:
            ``[len(sample_rows), vocab]``, float32.
        """
        x = self.embed(batch.token_ids)
        turns = self._rotary.turns(batch.positions)
        step = PagedStep(batch, store, self.config, self._attention)
        last = self.config.num_layers - 1
        for layer in range(last + 1):
            inputs = self.attention_input(layer, x)
            heads = self._project(layer, inputs, turns)
            out = step.attend(layer, inputs, heads)
            if layer == last:  # behind it only the sampled rows matter
                x, out = x[batch.sample_rows], out[batch.sample_rows]
            x = self.after_attention(layer, x, out)
        return self.logits(x)

    def embed(self, ids: I32) -> F32:
        """Return the embeddings ``[T, hidden]`` of *ids* ``[T]``, a copy."""
        rows: F32 = self.weights.embedding.take(ids, axis=0)
        return rows

    def attention_input(self, layer: int, x: F32) -> F32:
        """Return what the QKV product of *layer* takes: ``[T, hidden]``.

        The gain of the norm is in the weights, for every layer alike.
        """
        return self._normed(x)

    def qkv(self, layer: int, normed: F32, positions: Rows) -> tuple[F32, F32, F32]:
        """Return queries ``[T, heads, d]``, keys and values ``[T, kv_heads, d]``.

        RoPE is applied to queries and keys; its pairs are the numbers 2i and
        2i + 1 of a head. The queries are not scaled.
        """
        heads = self._project(layer, normed, self._rotary.turns(positions))
        queries, keys = self.config.num_heads, self.config.num_kv_heads
        stop = queries + keys
        return heads[:, :queries], heads[:, queries:stop], heads[:, stop:]

    def after_attention(self, layer: int, x: F32, out: F32) -> F32:
        """Add the attention's output ``[T, heads * d]`` and the MLP to *x*.

        Returns:
            *x* itself, changed in place.
        """
        weights = self.weights.layers[layer]
        x += _product(out, weights.output)
        gate_up = _product(self._normed(x), weights.gate_up)
        x += _product(_activated(gate_up), weights.down)
        return x

    def logits(self, x: F32) -> F32:
        """Return ``[n, vocab]`` for the last layer's rows *x* ``[n, hidden]``."""
        normed = self._normed(x) * self.weights.final_gain
        return _product(normed, self.weights.head)

    def _normed(self, x: F32) -> F32:
        squares = np.vecdot(x, x)
        squares /= np.float32(self.config.hidden_size)
        squares += np.float32(self.config.norm_eps)
        normed: F32 = x / np.sqrt(squares)[:, None]
        return normed

    def _project(self, layer: int, normed: F32, turns: C64) -> F32:
        """Return ``[T, heads + 2 * kv_heads, d]``, queries and keys turned."""
        config = self.config
        fused = _product(normed, self.weights.layers[layer].qkv)
        heads: F32 = fused.reshape(len(fused), -1, config.head_dim)
        rotate(heads[:, : config.num_heads + config.num_kv_heads], turns)
        return heads


def _product(rows: F32, weight: F32) -> F32:
    """Return *rows* ``[T, inputs]`` times *weight* ``[outputs, inputs]``."""
    if 1 < len(rows) <= _FEW_ROWS:
        few: F32 = np.matvec(weight, rows)
        return few
    product: F32 = rows @ weight.T
    return product


def _activated(gate_up: F32) -> F32:
    """Return ``silu(gate) * up`` of ``[T, 2 * intermediate]``: SwiGLU."""
    width = gate_up.shape[1] // 2
    active = np.empty((len(gate_up), width), np.float32)
    with np.errstate(over="ignore"):  # exp(-gate) may be infinite: silu is 0 then
        for start in range(0, len(gate_up), _MLP_ROWS):
            rows = gate_up[start : start + _MLP_ROWS]
            gate, up, out = rows[:, :width], rows[:, width:], active[start:][:_MLP_ROWS]
            np.negative(gate, out=out)
            np.exp(out, out=out)
            out += 1
            np.divide(gate, out, out=out)
            out *= up
    return active
