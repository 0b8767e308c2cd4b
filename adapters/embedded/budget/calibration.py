"""The offline run of InfiniGen, once a model: pairs and shifts."""

from dataclasses import dataclass

import numpy as np

from warmroute.adapters.embedded.model.arrays import F32, I32
from warmroute.adapters.embedded.model.config import LlamaConfig
from warmroute.adapters.embedded.model.llama import Llama
from warmroute.policies.eviction.speculation import Speculation, choose_pairs

SAMPLE_TOKENS = 256
"""Length of the sample that is drawn where no text is given."""

SINK_TOKENS = 4
"""First tokens left out of the means: their activations are like no others."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """What the sample showed of one layer, the sinks left out."""

    inputs: F32
    queries: F32
    keys: F32


def draw_sample(config: LlamaConfig) -> I32:
    """Return token ids drawn at random, the same ones each time.

    Magnitudes and shifts hardly depend on the text, so a sample without any
    needs no tokenizer and knows no language.
    """
    random = np.random.default_rng(0)
    return random.integers(0, config.vocab_size, SAMPLE_TOKENS).astype(np.int32)


def calibrate(model: Llama, sample: I32, partial: float) -> list[Speculation]:
    """Run the model over *sample* and prepare the speculation of all layers.

    The first layer has none before it: its speculation is only used for the part
    of its true queries. Takes as long as a prefill of the sample.

    Args:
        model: The model.
        sample: Token ids ``[tokens]``, more than `SINK_TOKENS`.
        partial: Share of each head to speculate with.

    Raises:
        PolicyError: The share is not above 0 and at most 1.
    """
    config = model.config
    speculations = []
    earlier: F32 | None = None
    for at, layer in enumerate(_run(model, sample)):
        inputs = layer.inputs
        shift = np.zeros_like(inputs[0])
        if earlier is not None:
            shift = (inputs - earlier).mean(axis=0)
        fused = model.weights.layers[at].qkv[:, : config.query_size]
        rows = np.ascontiguousarray(fused.T)
        weights = rows.reshape(config.num_heads, config.head_dim, -1)
        pairs = choose_pairs(layer.queries, layer.keys, partial)
        speculations.append(Speculation(weights, pairs, shift))
        earlier = inputs
    return speculations


def _run(model: Llama, sample: I32) -> list[_Layer]:
    positions = np.arange(len(sample))
    x = model.embed(sample)
    layers = []
    for layer in range(model.config.num_layers):
        inputs = model.attention_input(layer, x)
        queries, keys, values = model.qkv(layer, inputs, positions)
        seen = (each[SINK_TOKENS:].copy() for each in (inputs, queries, keys))
        layers.append(_Layer(*seen))
        x = model.after_attention(layer, x, _attend(queries, keys, values))
    return layers


def _attend(queries: F32, keys: F32, values: F32) -> F32:
    """Return plain causal attention ``[tokens, heads * d]`` of a short sample."""
    tokens, kv_heads, width = keys.shape
    grouped = queries.reshape(tokens, kv_heads, -1, width).transpose(1, 2, 0, 3)
    scores: F32 = grouped @ keys.transpose(1, 2, 0)[:, None]
    scores *= np.float32(width**-0.5)
    scores[..., np.triu(np.ones((tokens, tokens), bool), k=1)] = -np.inf
    scores -= scores.max(axis=3, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=3, keepdims=True)
    out: F32 = scores @ values.swapaxes(0, 1)[:, None]
    return out.transpose(2, 0, 1, 3).reshape(tokens, kv_heads * len(out[0]) * width)
