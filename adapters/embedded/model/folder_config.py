"""The shape and the tokenizer of a folder as Hugging Face writes it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warmroute.adapters.embedded.model.config import LlamaConfig
from warmroute.adapters.embedded.model.rope import read_divisors
from warmroute.adapters.tokens.errors import ModelError
from warmroute.adapters.tokens.files import read_files, read_object
from warmroute.adapters.tokens.tokenizer import ChatTokenizer

_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
_REFUSED = {"attention_bias": False, "mlp_bias": False, "sliding_window": None}


def read_config(folder: Path) -> LlamaConfig:
    """Read ``config.json`` and, where it is, ``generation_config.json``.

    Raises:
        ModelError: No Llama shape, or a part of it is missing.
    """
    path = folder / "config.json"
    values = read_object(path)
    _check_architecture(path, values)
    generation = folder / "generation_config.json"
    eos = read_object(generation).get("eos_token_id") if generation.exists() else None
    try:
        return _to_config(folder.name, values, eos)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"{path}: lacks a usable {error}; fetch the whole model again"
        ) from error


def read_tokenizer(folder: Path, config: LlamaConfig) -> ChatTokenizer:
    """Read ``tokenizer.json`` and the chat template of *folder*.

    Raises:
        ModelError: No tokenizer, or a damaged one.
    """
    return ChatTokenizer.from_files(read_files(folder), config.eos_ids)


def _check_architecture(path: Path, values: Mapping[str, Any]) -> None:
    found = values.get("architectures") or [values.get("model_type")]
    if found[0] not in (*_ARCHITECTURES, "llama", "mistral"):
        raise ModelError(
            f"{path}: architecture {found[0]!r} is not Llama-shaped (allowed: "
            f"{', '.join(_ARCHITECTURES)}); choose another model"
        )
    for key, allowed in _REFUSED.items():
        if values.get(key, allowed) not in (allowed, None):
            raise ModelError(
                f"{path}: {key} is {values[key]!r} (allowed: {allowed!r}); choose "
                "another model"
            )
    if values.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelError(
            f"{path}: hidden_act is {values['hidden_act']!r} (allowed: 'silu'); choose "
            "another model"
        )


def _to_config(
    name: str, values: Mapping[str, Any], generation_eos: int | list[int] | None
) -> LlamaConfig:
    scaling = values.get("rope_parameters") or values.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta") or values.get("rope_theta") or 10000.0)
    num_heads = int(values["num_attention_heads"])
    width = int(values.get("head_dim") or values["hidden_size"] // num_heads)
    eos = generation_eos if generation_eos is not None else values.get("eos_token_id")
    return LlamaConfig(
        name=name,
        vocab_size=int(values["vocab_size"]),
        hidden_size=int(values["hidden_size"]),
        intermediate_size=int(values["intermediate_size"]),
        num_layers=int(values["num_hidden_layers"]),
        num_heads=num_heads,
        num_kv_heads=int(values.get("num_key_value_heads") or num_heads),
        head_dim=width,
        rope_theta=theta,
        norm_eps=float(values.get("rms_norm_eps", 1e-6)),
        max_positions=int(values.get("max_position_embeddings", 2048)),
        eos_ids=_ids(eos),
        bos_id=values.get("bos_token_id"),
        rope_divisors=read_divisors(scaling, theta, width, name),
    )


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
