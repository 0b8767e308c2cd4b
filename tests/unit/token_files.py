"""Tokenizers and chat templates for tests, made in code."""

import json
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from warmroute.adapters.embedded.model.tiny import tiny_tokenizer
from warmroute.adapters.tokens.detokenizer import byte_alphabet
from warmroute.adapters.tokens.files import DEFAULT, TokenizerFiles

CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] }}
{{- '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

MERGES = (
    *(("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("\u0120", "w")),
    *(("a", "b"), ("ab", "a"), ("\u0120", "\u0120"), ("<", "|"), ("|", ">")),
)


def byte_tokenizer(marks: list[AddedToken], **settings: Any) -> Tokenizer:
    """Make byte-level BPE with some merges, those across marks' letters included."""
    letters = sorted(byte_alphabet())
    merged = ["".join(pair) for pair in MERGES]
    vocabulary = {token: at for at, token in enumerate([*letters, *merged])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=settings.get("prefix_space", False)
    )
    tokenizer.decoder = decoders.ByteLevel()
    if settings.get("normalizes"):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens(marks)
    if first := settings.get("first"):
        first_id = tokenizer.token_to_id(first)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", special_tokens=[(first, first_id)]
        )
    return tokenizer


def metaspace_tokenizer(marks: list[AddedToken], scheme: str) -> Tokenizer:
    """Make a tokenizer that marks spaces as SentencePiece does."""
    letters = sorted({*map(chr, range(32, 127)), "\u2581", "\n", "é", "世"})
    vocabulary = {"<unk>": 0}
    for token in [*letters, "he", "ll", "\u2581a", "ab", "\u2581\u2581"]:
        vocabulary.setdefault(token, len(vocabulary))
    merges = [("h", "e"), ("l", "l"), ("\u2581", "a"), ("a", "b"), ("\u2581", "\u2581")]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>")
    )
    if scheme == "replaced":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            prepend_scheme=scheme, split=scheme != "always"
        )
    tokenizer.add_tokens(marks)
    return tokenizer


def mark(content: str, **kind: bool) -> AddedToken:
    return AddedToken(content, **{"special": True, "normalized": False, **kind})


def tiny_files(template: str = CHATML) -> TokenizerFiles:
    """Return what the embedded engine's tiny model uses."""
    named = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    tokenizer = Tokenizer.from_str(tiny_tokenizer()._tokenizer.to_str())
    return TokenizerFiles(tokenizer, {DEFAULT: template}, named)


def write_files(folder: Path, files: TokenizerFiles) -> Path:
    """Write a folder as Hugging Face does."""
    folder.mkdir(parents=True, exist_ok=True)
    files.tokenizer.save(str(folder / "tokenizer.json"))
    settings = {**files.named, "chat_template": files.templates[DEFAULT]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
