"""A small model, batches for it, and the same model written naively."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from warmroute.adapters.embedded.model.arrays import F32, I32
from warmroute.adapters.embedded.model.batch import (
    Batch,
    SequenceAttention,
    SequenceRows,
)
from warmroute.adapters.embedded.model.config import LlamaConfig
from warmroute.adapters.embedded.model.kv_store import KVStore
from warmroute.adapters.embedded.model.llama import Llama
from warmroute.adapters.embedded.model.rope import pair_up
from warmroute.adapters.embedded.model.tiny import random_tensors, tiny_config
from warmroute.adapters.embedded.model.weights import fuse_weights

BLOCK = 4
CONFIG = tiny_config()
F64 = NDArray[np.float64]


def halved_tensors(config: LlamaConfig = CONFIG, seed: int = 1) -> dict[str, F32]:
    """Random weights in the layout of Hugging Face."""
    return random_tensors(config, seed)


def paired(tensors: dict[str, F32], config: LlamaConfig = CONFIG) -> dict[str, F32]:
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    return {
        name: pair_up(tensor, heads[part]) if part in heads else tensor
        for name, tensor in tensors.items()
        for part in [name.split(".")[-2]]
    }


def make_model(config: LlamaConfig = CONFIG, seed: int = 1) -> Llama:
    return Llama(
        config, fuse_weights(paired(halved_tensors(config, seed), config), config)
    )


def make_store(num_pages: int = 64, config: LlamaConfig = CONFIG) -> KVStore:
    return KVStore(config, num_pages, BLOCK)


def draw_ids(count: int, seed: int = 0) -> I32:
    random = np.random.default_rng(seed)
    return random.integers(0, CONFIG.vocab_size, count).astype(np.int32)


def scattered_table(length: int, num_pages: int = 64, seed: int = 0) -> I32:
    random = np.random.default_rng(seed)
    pages = random.permutation(np.arange(1, num_pages, dtype=np.int32))
    return pages[: -(-length // BLOCK)]


def one_run(length: int, first: int = 1) -> I32:
    return np.arange(first, first + -(-length // BLOCK), dtype=np.int32)


class Part:
    """New tokens of one sequence: those from *start* on."""

    def __init__(
        self,
        ids: I32,
        table: I32,
        start: int = 0,
        stop: int | None = None,
        attention: SequenceAttention | None = None,
        scores: F32 | None = None,
    ) -> None:
        self.stop = len(ids) if stop is None else stop
        self.ids = ids[start : self.stop]
        self.positions = np.arange(start, self.stop, dtype=np.int32)
        self.table = table
        self.attention = attention
        self.scores = scores

    @property
    def slots(self) -> NDArray[np.int64]:
        pages = self.table[self.positions // BLOCK].astype(np.int64)
        return pages * BLOCK + self.positions % BLOCK


def make_batch(*parts: Part, every_row: bool = False) -> Batch:
    """One step of all *parts*; logits of each one's last row, or of all rows."""
    sequences, start = [], 0
    for part in parts:
        count = len(part.ids)
        sequences.append(
            SequenceRows(
                start, count, part.table, part.stop, part.attention, part.scores
            )
        )
        start += count
    last = [rows.start + rows.count - 1 for rows in sequences]
    return Batch(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.positions for part in parts]),
        np.concatenate([part.slots for part in parts]),
        sequences,
        np.arange(start) if every_row else np.array(last),
    )


def run(model: Llama, store: KVStore, *parts: Part, every_row: bool = False) -> F32:
    return model.forward(make_batch(*parts, every_row=every_row), store)


class NaiveLlama:
    """The textbook in float64: whole matrices, halves turned, no cache."""

    def __init__(self, tensors: dict[str, F32], config: LlamaConfig = CONFIG) -> None:
        self.config = config
        self.tensors = {k: v.astype(np.float64) for k, v in tensors.items()}
        self.attention: list[F64] = []

    def logits(self, ids: Sequence[int] | I32) -> F64:
        """Return ``[T, vocab]``; keeps ``[heads, T, T]`` a layer in `attention`."""
        self.attention = []
        x = self.tensors["model.embed_tokens.weight"][np.asarray(ids)]
        for layer in range(self.config.num_layers):
            prefix = f"model.layers.{layer}."
            x = x + self._attend(prefix, self._norm(prefix + "input_layernorm", x))
            normed = self._norm(prefix + "post_attention_layernorm", x)
            gate = self._apply(prefix + "mlp.gate_proj", normed)
            up = self._apply(prefix + "mlp.up_proj", normed)
            x = x + self._apply(
                prefix + "mlp.down_proj", gate / (1 + np.exp(-gate)) * up
            )
        return self._apply("lm_head", self._norm("model.norm", x))

    def _attend(self, prefix: str, x: F64) -> F64:
        config, length = self.config, len(x)
        q = self._heads(prefix + "self_attn.q_proj", x)
        k = self._heads(prefix + "self_attn.k_proj", x)
        v = self._heads(prefix + "self_attn.v_proj", x)
        q, k = self._turn(q), self._turn(k)
        k, v = (np.repeat(each, config.group_size, axis=0) for each in (k, v))
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(config.head_dim)
        scores[:, ~np.tri(length, dtype=bool)] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        self.attention.append(shares)
        out = (shares @ v).transpose(1, 0, 2).reshape(length, -1)
        return self._apply(prefix + "self_attn.o_proj", out)

    def _turn(self, heads: F64) -> F64:
        half = self.config.head_dim // 2
        frequencies = self.config.rope_theta ** (-np.arange(half) / half)
        if self.config.rope_divisors:
            frequencies = frequencies / np.array(self.config.rope_divisors)
        angles = np.arange(heads.shape[1])[:, None] * frequencies
        first, second = heads[..., :half], heads[..., half:]
        cos, sin = np.cos(angles), np.sin(angles)
        turned = (first * cos - second * sin, second * cos + first * sin)
        return np.concatenate(turned, axis=-1)

    def _heads(self, name: str, x: F64) -> F64:
        flat = self._apply(name, x)
        return flat.reshape(len(x), -1, self.config.head_dim).transpose(1, 0, 2)

    def _norm(self, name: str, x: F64) -> F64:
        size = np.sqrt((x * x).mean(-1, keepdims=True) + self.config.norm_eps)
        return x / size * self.tensors[f"{name}.weight"]

    def _apply(self, name: str, x: F64) -> F64:
        return x @ self.tensors[f"{name}.weight"].T
