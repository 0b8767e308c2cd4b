"""A tokenizer rebuilt from the metadata of a GGUF file."""

from collections.abc import Mapping
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
)

from warmroute.adapters.tokens.errors import ModelError
from warmroute.adapters.tokens.files import DEFAULT, TokenizerFiles

_CONTROL, _USER_DEFINED = 3, 4
_LLAMA3 = ("llama-bpe", "llama3", "llama-v3")
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def build_files(metadata: Mapping[str, Any], path: str) -> TokenizerFiles:
    """Build byte-level BPE from vocabulary, merges and the kind of word splitting.

    Raises:
        ModelError: No tokenizer in the file, or one of another kind.
    """
    kind = metadata.get("tokenizer.ggml.model")
    merges = metadata.get("tokenizer.ggml.merges")
    if kind != "gpt2" or not merges:
        raise ModelError(
            f"{path}: tokenizer {kind!r} is not supported (allowed: 'gpt2', which is "
            "byte-level BPE, with its merges); use the model's folder with "
            "tokenizer.json and safetensors instead"
        )
    tokens = list(metadata["tokenizer.ggml.tokens"])
    splitting = metadata.get("tokenizer.ggml.pre", "default")
    whole_words = splitting in _LLAMA3
    tokenizer = Tokenizer(_pair_encoding(tokens, merges, whole_words, path))
    tokenizer.pre_tokenizer = _pre_tokenizer(splitting, path)
    tokenizer.decoder = decoders.ByteLevel()
    _add_marks(tokenizer, tokens, metadata.get("tokenizer.ggml.token_type", ()))
    named = _named_tokens(metadata, tokens)
    bos_id = metadata.get("tokenizer.ggml.bos_token_id")
    if metadata.get("tokenizer.ggml.add_bos_token") and bos_id is not None:
        _start_with(tokenizer, named["bos_token"], bos_id)
    source = metadata.get("tokenizer.chat_template")
    return TokenizerFiles(tokenizer, {DEFAULT: source} if source else {}, named)


def _pair_encoding(
    tokens: list[str], merges: list[str], whole_words: bool, path: str
) -> models.BPE:
    """Build the model; Llama 3 takes *whole_words* of its vocabulary unmerged."""
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    split = [merge.partition(" ") for merge in merges]
    try:
        return models.BPE(
            vocab=vocabulary,
            merges=[(left, right) for left, _, right in split],
            ignore_merges=whole_words,
        )
    except Exception as error:  # the library raises Exception itself
        raise ModelError(
            f"{path}: the tokenizer's merges do not fit its vocabulary ({error}); "
            "fetch the file again"
        ) from error


def _pre_tokenizer(kind: str, path: str) -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if kind == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, words])
    if kind in _LLAMA3:
        split = pre_tokenizers.Split(Regex(_LLAMA3_WORDS), "isolated")
        letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, letters])
    if kind in ("default", "gpt-2"):
        return words
    raise ModelError(
        f"{path}: words are split as {kind!r} (allowed: default, gpt-2, llama-bpe, "
        "smollm); use the model's folder with tokenizer.json and safetensors instead"
    )


def _add_marks(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    marks = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, types, strict=False)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_tokens(marks)


def _start_with(tokenizer: Tokenizer, token: str, token_id: int) -> None:
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", special_tokens=[(token, token_id)]
    )


def _named_tokens(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, str]:
    named = {}
    for name, key in (
        ("bos_token", "bos"),
        ("eos_token", "eos"),
        ("unk_token", "unknown"),
        ("pad_token", "padding"),
    ):
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None and token_id < len(tokens):
            named[name] = tokens[token_id]
    return named
