"""A Llama-like model in NumPy: RMSNorm, RoPE, grouped-query attention, SwiGLU.

Touvron et al. 2023 (LLaMA), section 2.2; Ainslie et al. 2023 (GQA). Float32. All
tokens of a step go through one product a weight, whichever sequence they are of.

Several processes may compute a step: each multiplies with columns of its own of every
weight, and does all else, attention above all, for rows of its own.
"""

import numpy as np

from warmroute.adapters.embedded.model.arrays import C64, F32, I32, Rows
from warmroute.adapters.embedded.model.attention import Attention
from warmroute.adapters.embedded.model.batch import Batch
from warmroute.adapters.embedded.model.config import LlamaConfig
from warmroute.adapters.embedded.model.kv_store import KVStore
from warmroute.adapters.embedded.model.member import Member
from warmroute.adapters.embedded.model.paged_step import PagedStep
from warmroute.adapters.embedded.model.products import multiply, multiply_head
from warmroute.adapters.embedded.model.rope import Rotary, rotate
from warmroute.adapters.embedded.model.scratch import Scratch
from warmroute.adapters.embedded.model.shares import Share
from warmroute.adapters.embedded.model.weights import LlamaWeights

_MLP_ROWS = 16
"""Rows of the MLP's activation at a time: they stay in the processor's cache."""


class Llama:
    """The model.

    Args:
        config: Its shape.
        weights: As `fuse_weights` makes them.
    """

    __slots__ = ("_alone", "_attention", "_rotary", "_scratch", "config", "weights")

    def __init__(self, config: LlamaConfig, weights: LlamaWeights) -> None:
        self.config = config
        self.weights = weights
        self._rotary = Rotary(config)
        self._scratch = Scratch()
        self._attention = Attention(config, self._scratch)
        self._alone = Member(self._scratch.take)

    def __repr__(self) -> str:
        size = self.weights.nbytes / 4e6
        return f"<Llama {self.config.name}: {size:.0f} M numbers>"

    def forward(self, batch: Batch, store: KVStore) -> F32:
        """Compute a step: store its keys and values, return the wanted logits.

        Returns:
            ``[len(sample_rows), vocab]``, float32.
        """
        whole = Share(batch, 0, len(batch.token_ids), batch.sample_rows)
        return self.compute(whole, store, self._alone).copy()

    def compute(self, share: Share, store: KVStore, member: Member) -> F32:
        """Compute the share of one member, while all others compute theirs.

        Returns:
            ``[len(sample_rows), vocab]``: all wanted logits, until the next step.
        """
        batch, rows = share.batch, share.rows
        x = member.take("x", share.total, self.config.hidden_size)
        x[rows] = self.embed(batch.token_ids)
        turns = self._rotary.turns(batch.positions)
        step = PagedStep(batch, store, self.config, self._attention)
        last = self.config.num_layers - 1
        for layer in range(last + 1):
            inputs = self._normed(x, rows, member)
            heads = self._project(layer, inputs, rows, turns, member)
            step.store(layer, heads)
            member.meet()
            mixed = member.take("mixed", len(x), self.config.query_size)
            out = mixed[rows].reshape(-1, self.config.num_heads, self.config.head_dim)
            step.attend(layer, inputs[rows], heads, out)
            member.meet()
            if layer == last:  # behind it only the sampled rows matter
                x, mixed = x[share.sample_rows], mixed[share.sample_rows]
                rows = member.rows(len(x))
            self._after_attention(layer, x, mixed, rows, member)
        return self._logits(x, rows, member)

    def shared_sizes(
        self, size: int, max_rows: int, max_samples: int
    ) -> dict[str, int]:
        """Return how many numbers members share in a step, by what they take.

        Args:
            size: Members.
            max_rows: Rows of a step.
            max_samples: Rows whose logits are wanted.
        """
        config = self.config
        hidden = max_rows * config.hidden_size
        return {
            "x": hidden,
            "normed": hidden,
            "qkv": max_rows * (config.query_size + 2 * config.kv_size),
            "mixed": max_rows * config.query_size,
            "added": hidden,
            "mlp": size * hidden,
            "logits": max_samples * config.vocab_size,
        }

    def embed(self, ids: I32) -> F32:
        """Return the embeddings ``[T, hidden]`` of *ids* ``[T]``, a copy."""
        rows: F32 = self.weights.embedding.take(ids, axis=0)
        return rows

    def attention_input(self, layer: int, x: F32) -> F32:
        """Return what the QKV product of *layer* takes: ``[T, hidden]``.

        The gain of the norm is in the weights, for every layer alike.
        """
        return self._normed(x, slice(None), self._alone).copy()

    def qkv(self, layer: int, normed: F32, positions: Rows) -> tuple[F32, F32, F32]:
        """Return queries ``[T, heads, d]``, keys and values ``[T, kv_heads, d]``.

        RoPE is applied to queries and keys; its pairs are the numbers 2i and
        2i + 1 of a head. The queries are not scaled.
        """
        turns = self._rotary.turns(positions)
        heads = self._project(layer, normed, slice(None), turns, self._alone).copy()
        queries, keys = self.config.num_heads, self.config.num_kv_heads
        stop = queries + keys
        return heads[:, :queries], heads[:, queries:stop], heads[:, stop:]

    def after_attention(self, layer: int, x: F32, out: F32) -> F32:
        """Add the attention's output ``[T, heads * d]`` and the MLP to *x*.

        Returns:
            *x* itself, changed in place.
        """
        self._after_attention(layer, x, out, slice(None), self._alone)
        return x

    def logits(self, x: F32) -> F32:
        """Return ``[n, vocab]`` for the last layer's rows *x* ``[n, hidden]``."""
        return self._logits(x, slice(None), self._alone).copy()

    def _normed(self, x: F32, rows: slice, member: Member) -> F32:
        own = x[rows]
        squares = np.vecdot(own, own)
        squares /= np.float32(self.config.hidden_size)
        squares += np.float32(self.config.norm_eps)
        out = member.take("normed", *x.shape)
        np.multiply(own, (1 / np.sqrt(squares))[:, None], out=out[rows])
        member.meet()
        return out

    def _project(
        self, layer: int, normed: F32, rows: slice, turns: C64, member: Member
    ) -> F32:
        """Return ``[rows, heads + 2 * kv_heads, d]``, queries and keys turned."""
        config, weight = self.config, self.weights.layers[layer].qkv
        qkv = self._multiply("qkv", normed, weight, member)[rows]
        turned = config.num_heads + config.num_kv_heads
        heads: F32 = qkv.reshape(-1, turned + config.num_kv_heads, config.head_dim)
        rotate(heads[:, :turned], turns)
        return heads

    def _after_attention(
        self, layer: int, x: F32, mixed: F32, rows: slice, member: Member
    ) -> None:
        """Add attention and MLP to the own *rows* of *x*."""
        weight = self.weights.layers[layer].output
        x[rows] += self._multiply("added", mixed, weight, member)[rows]
        normed = self._normed(x, rows, member)
        parts = member.take("mlp", member.size, *x.shape)
        units = member.columns(self.config.intermediate_size)
        self._mlp(layer, normed, units, parts[member.rank])
        member.meet()
        for part in parts:
            x[rows] += part[rows]

    def _mlp(self, layer: int, normed: F32, units: slice, out: F32) -> None:
        """Write what some *units* of the MLP add ``[T, hidden]``."""
        weights, width = self.weights.layers[layer], self.config.intermediate_size
        scratch = self._scratch
        gate = scratch.take("gate", len(normed), units.stop - units.start)
        up = scratch.take("up", *gate.shape)
        multiply(normed, weights.gate_up[:, :width][:, units], gate, scratch)
        multiply(normed, weights.gate_up[:, width:][:, units], up, scratch)
        _activate(gate, up)
        multiply(gate, weights.down[units], out, scratch)

    def _multiply(self, name: str, rows: F32, weight: F32, member: Member) -> F32:
        """Return *rows* times *weight*, of which each member multiplies columns."""
        width = weight.shape[1]
        out, columns = member.take(name, len(rows), width), member.columns(width)
        multiply(rows, weight[:, columns], out[:, columns], self._scratch)
        member.meet()
        return out

    def _logits(self, x: F32, rows: slice, member: Member) -> F32:
        normed = self._normed(x, rows, member) * self.weights.final_gain
        head = self.weights.head
        out = member.take("logits", len(x), len(head))
        words = member.columns(len(head))
        multiply_head(normed, head[words], out[:, words])
        member.meet()
        return out


def _activate(gate: F32, up: F32) -> None:
    """Turn *gate* ``[T, units]`` into ``silu(gate) * up``: SwiGLU."""
    with np.errstate(over="ignore"):  # exp(-gate) may be infinite: silu is 0 then
        for start in range(0, len(gate), _MLP_ROWS):
            rows = slice(start, start + _MLP_ROWS)
            divisors = np.exp(-gate[rows])
            divisors += 1
            gate[rows] /= divisors
            gate[rows] *= up[rows]
