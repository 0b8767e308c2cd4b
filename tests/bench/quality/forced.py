"""Run a model over given texts, layer by layer, with any attention."""

from collections.abc import Callable, Sequence

import numpy as np
from attending import F32, Attending, LayerInputs
from numpy.typing import NDArray

from warmroute.adapters.embedded.model.llama import Llama
from warmroute.adapters.embedded.model.rope import Rotary
from warmroute.policies.eviction.speculation import Speculation

Ids = NDArray[np.int32]


class Forced:
    """Teacher forcing: the text is given, a product covers all positions.

    Args:
        model: The model.
        speculations: One a layer, for attention that guesses.
    """

    def __init__(self, model: Llama, speculations: Sequence[Speculation]) -> None:
        self.model = model
        self._speculations = speculations
        self._rotary = Rotary(model.config)

    def run(
        self,
        attending: Callable[[], Attending],
        contexts: Ids,
        branches: Ids | None = None,
    ) -> tuple[F32, F32 | None]:
        """Run texts of one length, and their continuations.

        Args:
            attending: Makes the attention of one layer.
            contexts: ``[texts, tokens]``.
            branches: ``[texts, branches, tokens]``: each goes on from its text.

        Returns:
            The last layer's rows of the contexts ``[texts, tokens, hidden]``, and of
            the branches ``[texts, branches, tokens, hidden]``.
        """
        texts, length = contexts.shape
        trunk = _Strand(self.model.embed(contexts.reshape(-1)), texts, 0)
        branch = None
        if branches is not None:
            count = texts * branches.shape[1]
            branch = _Strand(self.model.embed(branches.reshape(-1)), count, length)
        rows = np.arange(texts * self.model.config.num_kv_heads).reshape(texts, -1)
        for layer in range(self.model.config.num_layers):
            attention = attending()
            self._layer(layer, attention, trunk)
            if branch is not None:
                attention.fork(rows.repeat(branch.texts // texts, axis=0).ravel())
                self._layer(layer, attention, branch)
        out = trunk.x.reshape(texts, length, -1)
        if branch is None or branches is None:
            return out, None
        return out, branch.x.reshape(*branches.shape, -1)

    def _layer(self, layer: int, attention: Attending, strand: "_Strand") -> None:
        model, texts = self.model, strand.texts
        inputs = model.attention_input(layer, strand.x)
        heads = model.qkv(layer, inputs, strand.positions)
        out = attention.extend(self._inputs(layer, strand, heads))
        by_token = out.reshape(texts, model.config.num_heads, strand.count, -1)
        flat = by_token.swapaxes(1, 2).reshape(len(strand.x), -1)
        strand.x = model.after_attention(layer, strand.x, flat)
        strand.before = inputs

    def _inputs(
        self, layer: int, strand: "_Strand", heads: tuple[F32, F32, F32]
    ) -> LayerInputs:
        config, texts = self.model.config, strand.texts
        queries, keys, values = (
            _by_row(each, texts, config.num_kv_heads) for each in heads
        )
        speculation = self._speculations[layer]
        if strand.before is None:
            guessed = speculation.part(heads[0])
        else:
            turns = self._rotary.turns(strand.positions)
            guessed = speculation.queries(strand.before, turns)
        guessed = guessed.reshape(len(guessed), config.num_heads, -1)
        by_text = keys.reshape(texts, config.num_kv_heads, strand.count, -1)
        return LayerInputs(
            queries * np.float32(config.head_dim**-0.5),
            keys[:, 0],
            values[:, 0],
            _by_row(guessed, texts, config.num_kv_heads),
            np.concatenate([speculation.keys(each) for each in by_text]),
        )


class _Strand:
    """Texts that go through the layers side by side.

    Args:
        x: ``[texts * n, hidden]``, their rows before the next layer.
        texts: How many there are.
        first: Position of their first token.
    """

    def __init__(self, x: F32, texts: int, first: int) -> None:
        self.x = x
        self.texts = texts
        self.count = len(x) // texts
        self.positions = np.tile(np.arange(first, first + self.count), texts)
        self.before: F32 | None = None


def _by_row(heads: F32, texts: int, kv_heads: int) -> F32:
    """Turn ``[texts * n, heads, d]`` into ``[texts * kv_heads, group, n, d]``."""
    tokens, count, width = heads.shape
    group = count // kv_heads
    shaped = heads.reshape(texts, tokens // texts, kv_heads, group, width)
    rows = shaped.transpose(0, 2, 3, 1, 4).reshape(texts * kv_heads, group, -1, width)
    return np.ascontiguousarray(rows)
