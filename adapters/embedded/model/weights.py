"""The weights of a Llama-like model, fused for few and large products.

Layouts are ``[inputs, outputs]``: where there are several rows, BLAS copies a weight
for its kernels first, and from this one it copies faster. The gains of an RMSNorm are
multiplied into the weights behind it: the norm itself then only divides. Q, K and V are
one product, gate and up projection another.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.config import LlamaConfig
from warmroute.adapters.tokens.errors import ModelError

Tensors = Mapping[str, F32]
"""Float32 tensors by the names of Hugging Face's Llama, Q and K in pairs."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer.

    Args:
        qkv: ``[hidden, query_size + 2 * kv_size]``: Q heads, K heads, V heads; RoPE
            pairs are neighbours (see `rope`); the attention norm's gain is in it.
        output: ``[query_size, hidden]``.
        gate_up: ``[hidden, 2 * intermediate]``, the MLP norm's gain in it.
        down: ``[intermediate, hidden]``.
    """

    qkv: F32
    output: F32
    gate_up: F32
    down: F32


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """All layers, the embedding ``[vocab, hidden]`` and the head over the vocabulary.

    The head ``[vocab, hidden]`` is the embedding itself where the model ties them and
    *final_gain* ``[hidden]`` cannot be multiplied in.
    """

    layers: tuple[LayerWeights, ...]
    embedding: F32
    final_gain: F32
    head: F32

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, each counted once."""
        arrays = {id(self.embedding): self.embedding, id(self.head): self.head}
        layers = (
            each.nbytes
            for layer in self.layers
            for each in (layer.qkv, layer.output, layer.gate_up, layer.down)
        )
        return sum(layers) + sum(array.nbytes for array in arrays.values())


def fuse_weights(tensors: Tensors, config: LlamaConfig) -> LlamaWeights:
    """Build the weights from *tensors*, which may be dropped afterwards.

    Raises:
        ModelError: A tensor is missing or has another shape than *config* says.
    """
    shapes = tensor_shapes(config)
    tied = "lm_head.weight" not in tensors
    if tied:
        del shapes["lm_head.weight"]
    _check(tensors, shapes, config.name)
    embedding = _packed(tensors["model.embed_tokens.weight"])
    return LlamaWeights(
        tuple(_fuse_layer(tensors, at) for at in range(config.num_layers)),
        embedding,
        tensors["model.norm.weight"],
        embedding if tied else _packed(tensors["lm_head.weight"]),
    )


def _fuse_layer(tensors: Tensors, at: int) -> LayerWeights:
    layer = f"model.layers.{at}."
    attention, mlp = f"{layer}self_attn.", f"{layer}mlp."
    qkv = (tensors[f"{attention}{each}_proj.weight"] for each in "qkv")
    gate_up = (tensors[f"{mlp}{each}_proj.weight"] for each in ("gate", "up"))
    return LayerWeights(
        _stacked(qkv, tensors[f"{layer}input_layernorm.weight"]),
        _packed(tensors[f"{attention}o_proj.weight"].T),
        _stacked(gate_up, tensors[f"{layer}post_attention_layernorm.weight"]),
        _packed(tensors[f"{mlp}down_proj.weight"].T),
    )


def _stacked(weights: Iterable[F32], gain: F32) -> F32:
    stacked = np.concatenate(list(weights))
    stacked *= gain
    return _packed(stacked.T)


def _packed(weight: F32) -> F32:
    return np.ascontiguousarray(weight, np.float32)


def tensor_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Return every tensor that a model may have, with its shape."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (config.vocab_size, hidden),
    }
    layer = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (config.query_size, hidden),
        "self_attn.k_proj": (config.kv_size, hidden),
        "self_attn.v_proj": (config.kv_size, hidden),
        "self_attn.o_proj": (hidden, config.query_size),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    for at in range(config.num_layers):
        for name, shape in layer.items():
            shapes[f"model.layers.{at}.{name}.weight"] = shape
    return shapes


def _check(tensors: Tensors, shapes: Mapping[str, tuple[int, ...]], model: str) -> None:
    missing = [name for name in shapes if name not in tensors]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ModelError(
            f"{model}: {len(missing)} of {len(shapes)} tensors are missing: "
            f"{', '.join(missing[:3])}{more}; fetch the whole model again"
        )
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            raise ModelError(
                f"{model}: tensor {name} has shape {tensors[name].shape}, the config "
                f"says {shape}; config and weights are of different models"
            )
