"""Model files, written as other programs write them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from unit.model_rig import CONFIG, halved_tensors, paired

from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.tokens.detokenizer import byte_alphabet

MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
ENCODERS: dict[str, Callable[[F32], np.ndarray]] = {
    "F32": lambda tensor: tensor.astype("<f4"),
    "F16": lambda tensor: tensor.astype("<f2"),
    "BF16": lambda tensor: (tensor.view(np.uint32) >> 16).astype("<u2"),
}


def write_safetensors(path: Path, tensors: dict[str, F32], kind: str = "F32") -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs, start = [], 0
    for name, tensor in tensors.items():
        blob = ENCODERS[kind](tensor).tobytes()
        offsets = [start, start + len(blob)]
        header[name] = {
            "dtype": kind,
            "shape": tensor.shape,
            "data_offsets": offsets,
        }
        blobs.append(blob)
        start += len(blob)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def write_gguf(
    path: Path,
    change: Callable[[GGUFWriter], None] = lambda writer: None,
    architecture: str = "llama",
    skip: str = "",
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
) -> Path:
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(CONFIG.num_layers)
    writer.add_context_length(512)
    writer.add_embedding_length(CONFIG.hidden_size)
    writer.add_feed_forward_length(CONFIG.intermediate_size)
    writer.add_head_count(CONFIG.num_heads)
    writer.add_head_count_kv(CONFIG.num_kv_heads)
    writer.add_layer_norm_rms_eps(CONFIG.norm_eps)
    if skip != "tokenizer":
        add_vocabulary(writer)
    change(writer)
    for name, tensor in paired(halved_tensors()).items():
        if name != skip:
            add_tensor(writer, name, tensor, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_vocabulary(writer: GGUFWriter) -> None:
    letters = byte_alphabet()
    tokens = [*MARKS, *sorted(letters, key=letters.__getitem__)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens[-1] = "hi"
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * 256)
    writer.add_token_merges(["h i"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)


def add_tensor(
    writer: GGUFWriter, name: str, tensor: F32, kind: GGMLQuantizationType
) -> None:
    stem = name.removesuffix(".weight")
    prefix = ""
    if stem.startswith("model.layers."):
        _, _, layer, stem = stem.split(".", 3)
        prefix = f"blk.{layer}."
    if tensor.ndim == 1:
        kind = GGMLQuantizationType.F32
    data = quantize(tensor, kind)
    writer.add_tensor(f"{prefix}{GGUF_NAMES[stem]}.weight", data, raw_dtype=kind)
