"""A model's tokenizer and chat templates, read from the files that come with it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors

from warmroute.adapters.tokens.errors import ModelError

DEFAULT = "default"
_NAMED_TOKENS = (
    *("bos_token", "eos_token", "unk_token", "sep_token"),
    *("pad_token", "cls_token", "mask_token"),
)


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """Hold what a folder says about turning text into tokens.

    Args:
        tokenizer: The vocabulary and its rules; it neither cuts nor pads.
        templates: Chat templates by name, as Jinja; the usual one is ``default``.
        named: The special tokens that templates use, such as ``bos_token``.
    """

    tokenizer: Tokenizer
    templates: Mapping[str, str]
    named: Mapping[str, str]


def read_files(folder: Path) -> TokenizerFiles:
    """Read ``tokenizer.json``, its settings and the chat templates of *folder*.

    Raises:
        ModelError: No tokenizer, or a damaged file.
    """
    tokenizer = _read_tokenizer(folder)
    settings = _read_settings(folder)
    named = _named_tokens(settings)
    _frame(tokenizer, settings, named)
    return TokenizerFiles(tokenizer, _read_templates(folder, settings), named)


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ModelError: It is not there, or not one.
    """
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read: {error.strerror} (a model folder has "
            "config.json, tokenizer.json and *.safetensors)"
        ) from error
    except ValueError as error:
        raise ModelError(f"{path}: not JSON ({error}); fetch it again") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path}: no JSON object; fetch it again")
    return values


def _read_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(
            f"{folder}: no tokenizer.json (SentencePiece's tokenizer.model alone is "
            "not enough); fetch it, or save the tokenizer again with transformers"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise ModelError(
            f"{path}: not a tokenizer ({error}); fetch it again"
        ) from error
    # The file may hold those of the training; transformers drops them, too.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_settings(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = folder / name
        if path.exists():
            settings |= read_object(path)
    return settings


def _named_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    named = {}
    for key in _NAMED_TOKENS:
        token = settings.get(key)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            named[key] = token
    return named


def _frame(
    tokenizer: Tokenizer, settings: Mapping[str, Any], named: Mapping[str, str]
) -> None:
    """Put the first and last token around texts, where the settings decide on them."""
    wishes = {"bos_token": "add_bos_token", "eos_token": "add_eos_token"}
    if not any(wish in settings for wish in wishes.values()):
        return
    around = {}
    for name, wish in wishes.items():
        token_id = tokenizer.token_to_id(named.get(name, ""))
        if settings.get(wish) and token_id is not None:
            around[name] = (named[name], token_id)
    single = ["$A"]
    if "bos_token" in around:
        single.insert(0, around["bos_token"][0])
    if "eos_token" in around:
        single.append(around["eos_token"][0])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=list(dict.fromkeys(around.values()))
    )


def _read_templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the templates: files of their own win over those in the settings."""
    templates = {
        path.stem: path.read_text(encoding="utf-8")
        for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))
    }
    path = folder / "chat_template.jinja"
    if path.is_file():
        templates[DEFAULT] = path.read_text(encoding="utf-8")
    if templates:
        return templates
    source = settings.get("chat_template")
    if isinstance(source, list):  # several, each with a name
        return {
            each["name"]: each["template"]
            for each in source
            if isinstance(each, dict)
            and isinstance(each.get("name"), str)
            and isinstance(each.get("template"), str)
        }
    return {DEFAULT: source} if isinstance(source, str) else {}
