"""A Llama-like model in one GGUF file, dequantised when it is loaded.

GGUF keeps the rows of Q and K in RoPE pairs already (see `rope`).
"""

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.config import LlamaConfig
from warmroute.adapters.tokens.errors import ModelError

_ARCHITECTURE = "llama"
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_ROPE_DIVISORS = "rope_freqs.weight"


class GGUFFile:
    """One file: its metadata are read at once, the tensors when asked for.

    Raises:
        ModelError: Not a whole GGUF file, or its model is not Llama-shaped.
    """

    __slots__ = ("_reader", "metadata", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = GGUFReader(path)
            self.metadata: Mapping[str, Any] = {
                key: field.contents() for key, field in self._reader.fields.items()
            }
        except (OSError, ValueError, LookupError, TypeError, struct.error) as error:
            raise ModelError(
                f"{path}: not a whole GGUF file ({error}); fetch it again"
            ) from error
        found = self.metadata.get("general.architecture")
        if found != _ARCHITECTURE:
            raise ModelError(
                f"{path}: architecture {found!r} is not Llama-shaped (allowed: "
                f"{_ARCHITECTURE!r}); choose another model"
            )

    def __repr__(self) -> str:
        return f"<GGUFFile {self.path}: {len(self._reader.tensors)} tensors>"

    def config(self, divisors: F32 | None) -> LlamaConfig:
        """Return the model's shape, with the RoPE divisors that `tensors` found.

        Raises:
            ModelError: A part of it is missing, or RoPE is scaled in an unknown way.
        """
        try:
            return self._to_config(divisors)
        except KeyError as error:
            raise ModelError(
                f"{self.path}: no {error} in the metadata; choose another file"
            ) from error

    def tensors(self) -> tuple[dict[str, F32], F32 | None]:
        """Dequantise all tensors; apart from them the RoPE divisors, if any.

        Raises:
            ModelError: A quantisation that is not known, or an expert layer.
        """
        tensors, divisors = {}, None
        for tensor in self._reader.tensors:
            try:
                numbers = dequantize(tensor.data, tensor.tensor_type)
            except (NotImplementedError, ValueError) as error:
                raise ModelError(
                    f"{self.path}: tensor {tensor.name} of type "
                    f"{tensor.tensor_type.name} cannot be dequantised ({error}); "
                    "choose another quantisation, such as Q8_0 or Q4_K_M"
                ) from error
            numbers = np.asarray(numbers, np.float32)
            if tensor.name == _ROPE_DIVISORS:
                divisors = numbers
            else:
                tensors[self._hugging_face_name(tensor.name)] = numbers
        return tensors, divisors

    def _hugging_face_name(self, name: str) -> str:
        match = _LAYER_TENSOR.fullmatch(name)
        if match and match[2] in _LAYER:
            return f"model.layers.{match[1]}.{_LAYER[match[2]]}.weight"
        if name in _OUTER:
            return _OUTER[name]
        raise ModelError(
            f"{self.path}: tensor {name} does not belong to a plain Llama (biases and "
            "experts are not supported); choose another model"
        )

    def _to_config(self, divisors: F32 | None) -> LlamaConfig:
        values, prefix = self.metadata, f"{_ARCHITECTURE}."
        hidden = int(values[f"{prefix}embedding_length"])
        num_heads = int(values[f"{prefix}attention.head_count"])
        width = int(
            values.get(f"{prefix}attention.key_length", 0)
            or values.get(f"{prefix}rope.dimension_count", 0)
            or hidden // num_heads
        )
        end = values.get("tokenizer.ggml.eos_token_id")
        turn = values.get("tokenizer.ggml.eot_token_id")
        return LlamaConfig(
            name=str(values.get("general.name", self.path.stem)),
            vocab_size=len(values["tokenizer.ggml.tokens"]),
            hidden_size=hidden,
            intermediate_size=int(values[f"{prefix}feed_forward_length"]),
            num_layers=int(values[f"{prefix}block_count"]),
            num_heads=num_heads,
            num_kv_heads=int(values.get(f"{prefix}attention.head_count_kv", num_heads)),
            head_dim=width,
            rope_theta=float(values.get(f"{prefix}rope.freq_base", 10000.0)),
            norm_eps=float(values[f"{prefix}attention.layer_norm_rms_epsilon"]),
            max_positions=int(values[f"{prefix}context_length"]),
            eos_ids=tuple(dict.fromkeys(i for i in (end, turn) if i is not None)),
            bos_id=values.get("tokenizer.ggml.bos_token_id"),
            rope_divisors=self._divisors(divisors, width),
        )

    def _divisors(self, divisors: F32 | None, width: int) -> tuple[float, ...]:
        if divisors is not None:
            return tuple(divisors.tolist())
        kind = self.metadata.get(f"{_ARCHITECTURE}.rope.scaling.type", "none")
        factor = float(self.metadata.get(f"{_ARCHITECTURE}.rope.scaling.factor", 1.0))
        if kind == "none":
            return ()
        if kind == "linear":
            return (factor,) * (width // 2)
        raise ModelError(
            f"{self.path}: rope scaling {kind!r} is not supported (allowed: none, "
            "linear, llama3); choose a model without it"
        )
