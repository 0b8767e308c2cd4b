"""A Llama-like model in NumPy: RMSNorm, RoPE, grouped-query attention, SwiGLU.

Touvron et al. 2023 (LLaMA), section 2.2; Ainslie et al. 2023 (GQA). Float32. All
tokens of a step go through one product a weight, whichever sequence they are of.
"""

from functools import partial

import numpy as np

from warmroute.adapters.embedded.model.arrays import C64, F32, I32, Rows
from warmroute.adapters.embedded.model.attention import Attention
from warmroute.adapters.embedded.model.batch import Batch
from warmroute.adapters.embedded.model.config import LlamaConfig
from warmroute.adapters.embedded.model.kv_store import KVStore
from warmroute.adapters.embedded.model.paged_step import PagedStep
from warmroute.adapters.embedded.model.products import multiply, multiply_head
from warmroute.adapters.embedded.model.rope import Rotary, rotate
from warmroute.adapters.embedded.model.scratch import Scratch
from warmroute.adapters.embedded.model.shares import split
from warmroute.adapters.embedded.model.team import Meet, Team, blas_threads
from warmroute.adapters.embedded.model.weights import LlamaWeights

_MLP_ROWS = 16
"""Rows of the MLP's activation at a time: they stay in the processor's cache."""


class Llama:
    """The model.

    Args:
        config: Its shape.
        weights: As `fuse_weights` makes them.
        threads: Threads that share a step of many rows; as many as BLAS has by
            default.
    """

    __slots__ = ("_attention", "_rotary", "_scratch", "_team", "config", "weights")

    def __init__(
        self, config: LlamaConfig, weights: LlamaWeights, threads: int | None = None
    ) -> None:
        self.config = config
        self.weights = weights
        self._rotary = Rotary(config)
        self._scratch = Scratch()
        self._attention = Attention(config, self._scratch)
        self._team = Team(threads or blas_threads())

    def __repr__(self) -> str:
        size = self.weights.nbytes / 4e6
        return f"<Llama {self.config.name}: {size:.0f} M numbers>"

    def forward(self, batch: Batch, store: KVStore) -> F32:
        """Compute a step: store its keys and values, return the wanted logits.

        Returns:
            ``[len(sample_rows), vocab]``, float32.
        """
        shares = split(batch, self.config, self._team.size)
        if len(shares) == 1:
            return self._run(batch, store)
        runs = [partial(self._run, share, store) for share in shares]
        return np.concatenate(self._team.run(runs))

    def embed(self, ids: I32) -> F32:
        """Return the embeddings ``[T, hidden]`` of *ids* ``[T]``, a copy."""
        rows: F32 = self.weights.embedding.take(ids, axis=0)
        return rows

    def attention_input(self, layer: int, x: F32) -> F32:
        """Return what the QKV product of *layer* takes: ``[T, hidden]``.

        The gain of the norm is in the weights, for every layer alike.
        """
        return self._normed(x).copy()

    def qkv(self, layer: int, normed: F32, positions: Rows) -> tuple[F32, F32, F32]:
        """Return queries ``[T, heads, d]``, keys and values ``[T, kv_heads, d]``.

        RoPE is applied to queries and keys; its pairs are the numbers 2i and
        2i + 1 of a head. The queries are not scaled.
        """
        turns = self._rotary.turns(positions)
        heads = self._project(layer, normed, turns).copy()
        queries, keys = self.config.num_heads, self.config.num_kv_heads
        stop = queries + keys
        return heads[:, :queries], heads[:, queries:stop], heads[:, stop:]

    def after_attention(self, layer: int, x: F32, out: F32) -> F32:
        """Add the attention's output ``[T, heads * d]`` and the MLP to *x*.

        Returns:
            *x* itself, changed in place.
        """
        weights, take, rows = self.weights.layers[layer], self._scratch.take, len(x)
        added = take("added", *x.shape)
        x += multiply(out, weights.output, added, self._scratch)
        gate_up = take("gate_up", rows, weights.gate_up.shape[1])
        multiply(self._normed(x), weights.gate_up, gate_up, self._scratch)
        active = take("active", rows, gate_up.shape[1] // 2)
        _activate(gate_up, active)
        x += multiply(active, weights.down, added, self._scratch)
        return x

    def logits(self, x: F32) -> F32:
        """Return ``[n, vocab]`` for the last layer's rows *x* ``[n, hidden]``."""
        head = self.weights.head
        out: F32 = np.empty((len(x), len(head)), np.float32)
        return multiply_head(self._normed(x) * self.weights.final_gain, head, out)

    def _run(self, batch: Batch, store: KVStore, meet: Meet = bool) -> F32:
        """Compute all layers; return the logits ``[n, vocab]`` of sampled rows."""
        x = self.embed(batch.token_ids)
        turns = self._rotary.turns(batch.positions)
        step = PagedStep(batch, store, self.config, self._attention)
        last = self.config.num_layers - 1
        for layer in range(last + 1):
            inputs = self._normed(x)
            heads = self._project(layer, inputs, turns)
            step.store(layer, heads)
            meet()
            out = self._scratch.take("mixed", len(x), self.config.query_size)
            step.attend(layer, inputs, heads, out.reshape(len(x), -1, heads.shape[2]))
            if layer == last:  # behind it only the sampled rows matter
                x, out = x[batch.sample_rows], out[batch.sample_rows]
            x = self.after_attention(layer, x, out)
        return self.logits(x)

    def _normed(self, x: F32) -> F32:
        squares = np.vecdot(x, x)
        squares /= np.float32(self.config.hidden_size)
        squares += np.float32(self.config.norm_eps)
        out = self._scratch.take("normed", *x.shape)
        np.multiply(x, (1 / np.sqrt(squares))[:, None], out=out)
        return out

    def _project(self, layer: int, normed: F32, turns: C64) -> F32:
        """Return ``[T, heads + 2 * kv_heads, d]``, queries and keys turned."""
        config, weight = self.config, self.weights.layers[layer].qkv
        fused = self._scratch.take("qkv", len(normed), weight.shape[1])
        multiply(normed, weight, fused, self._scratch)
        heads: F32 = fused.reshape(len(fused), -1, config.head_dim)
        rotate(heads[:, : config.num_heads + config.num_kv_heads], turns)
        return heads


def _activate(gate_up: F32, active: F32) -> None:
    """Write ``silu(gate) * up`` of ``[T, 2 * intermediate]``: SwiGLU."""
    width = active.shape[1]
    with np.errstate(over="ignore"):  # exp(-gate) may be infinite: silu is 0 then
        for start in range(0, len(gate_up), _MLP_ROWS):
            rows = gate_up[start : start + _MLP_ROWS]
            gate, up, out = rows[:, :width], rows[:, width:], active[start:][:_MLP_ROWS]
            np.negative(gate, out=out)
            np.exp(out, out=out)
            out += 1
            np.divide(gate, out, out=out)
            out *= up
