"""A tiny random model, made in code: everything works, nothing makes sense."""

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.config import LlamaConfig
from warmroute.adapters.embedded.model.llama import Llama
from warmroute.adapters.embedded.model.weights import fuse_weights, tensor_shapes
from warmroute.adapters.tokens.chat_template import ChatTemplate
from warmroute.adapters.tokens.detokenizer import byte_alphabet
from warmroute.adapters.tokens.tokenizer import ChatTokenizer

TINY = "tiny"
"""The model's name, and the path that `load_model` takes for it."""

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_EOS_ID = _SPECIAL.index("<|im_end|>")
_TEMPLATE = """\
{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] }}
{{- '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def tiny_config() -> LlamaConfig:
    """Return the shape: 2 layers, 4 query heads on 2 KV heads."""
    return LlamaConfig(
        name=TINY,
        vocab_size=len(_SPECIAL) + 256,
        hidden_size=64,
        intermediate_size=128,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        max_positions=16384,
        eos_ids=(_EOS_ID,),
        bos_id=_SPECIAL.index("<|im_start|>"),
    )


def tiny_model(seed: int = 0) -> Llama:
    """Make the model with random weights; the same seed gives the same model."""
    config = tiny_config()
    return Llama(config, fuse_weights(random_tensors(config, seed), config))


def random_tensors(config: LlamaConfig, seed: int) -> dict[str, F32]:
    """Draw weights whose outputs keep the size of their inputs; gains are about 1."""
    random = np.random.default_rng(seed)
    tensors: dict[str, F32] = {}
    for name, shape in tensor_shapes(config).items():
        drawn = random.standard_normal(shape, np.float32)
        if len(shape) == 1:
            tensors[name] = np.float32(1) + drawn / np.float32(10)
        elif name != "model.embed_tokens.weight":
            tensors[name] = drawn / np.float32(shape[1] ** 0.5)
        else:
            tensors[name] = drawn
    return tensors


def tiny_tokenizer() -> ChatTokenizer:
    """Make a tokenizer with one token a byte and ChatML's three marks."""
    letters = sorted(byte_alphabet().items(), key=lambda item: item[1])
    tokens = [*_SPECIAL, *(letter for letter, _ in letters)]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(mark, special=True, normalized=False) for mark in _SPECIAL]
    )
    named = {"bos_token": _SPECIAL[1], "eos_token": _SPECIAL[2]}
    return ChatTokenizer(tokenizer, ChatTemplate(_TEMPLATE, named), (_EOS_ID,))
