"""Which fields of OpenAI's and vLLM's APIs are known, borne, refused.

A field that would change the answer and is not implemented is refused by name, for
an answer that silently ignores it would be wrong. Clients often send such a field
with the value that means nothing; that value is borne.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from warmroute.adapters.embedded.server.errors import BadField
from warmroute.policies.registry import explain_unknown

# They carry no meaning for sampling here.
BORNE = frozenset(
    {
        *("user", "metadata", "store", "session_id", "request_id", "service_tier"),
        *("prompt_cache_key", "prompt_cache_retention", "safety_identifier"),
        *("parallel_tool_calls", "include_reasoning", "verbosity"),
        *("spaces_between_special_tokens", "tool_stream", "stream_interval"),
    }
)

# Known and not implemented: the values that mean nothing, null always among them.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "documents": ([],),
    "ec_transfer_params": ({},),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "kv_transfer_params": ({},),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logits_processors": ([],),
    "logprob_token_ids": ([],),
    "media_io_kwargs": ({},),
    "min_p": (0,),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "prediction": (),
    "presence_penalty": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "reasoning_effort": ("none",),
    "repetition_detection": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_prompt_text": (False,),
    "return_token_offsets": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "stop_token_ids": ([],),
    "structured_outputs": ({},),
    "suffix": ("",),
    "thinking_token_budget": (),
    "tool_choice": ("auto", "none"),
    "top_k": (0, -1),
    "truncate_prompt_tokens": (),
    "truncation_side": ("left", "right"),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "watermarking": (False,),
    "web_search_options": (),
}


def select_known(fields: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Return the fields among *known*; bear or refuse each of the others.

    Raises:
        BadField: A field is not implemented, or nobody knows it.
    """
    names = frozenset(known)
    for name, value in fields.items():
        if name not in names and name not in BORNE:
            _bear(name, value, names)
    return {name: value for name, value in fields.items() if name in names}


def _bear(name: str, value: object, known: frozenset[str]) -> None:
    if name not in UNSUPPORTED:
        name = name[:64]
        raise BadField(name, explain_unknown("field", name, known), "unknown_parameter")
    neutral = UNSUPPORTED[name]
    if not any(_is_same(value, one) for one in neutral):
        allowed = " or ".join(msgspec.json.encode(one).decode() for one in neutral)
        remedy = f"leave it out, or send {allowed}" if neutral else "leave it out"
        raise BadField(
            name,
            f"not supported by the embedded engine; {remedy}",
            "unsupported_parameter",
        )


def _is_same(value: object, neutral: object) -> bool:
    """Compare without taking True for 1."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
