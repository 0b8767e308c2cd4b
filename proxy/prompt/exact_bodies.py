"""The bodies of chats and completions, with all that decides on their tokens.

Strict where routing is lax: a field of another type than the engines document makes
the request one whose tokens are not known for certain.
"""

import json
from typing import Any

import msgspec
from msgspec import Raw

from warmroute.adapters.tokens.errors import NotExact
from warmroute.proxy.prompt.bodies import ABSENT, UNREADABLE, Body

# What vLLM hands to the tokenizer and not to the template, or refuses.
_RESERVED = frozenset(
    {
        *("chat_template", "conversation", "max_length", "messages", "padding"),
        *("return_assistant_tokens_mask", "return_dict", "return_tensors", "self"),
        *("tokenize", "tokenizer_kwargs", "tools", "truncation"),
    }
)
_OWN_FIELDS = ("add_generation_prompt", "continue_final_message")
_UNSET = (None, "auto")


class ExactBody(Body, gc=False):
    """What both kinds have in common."""

    truncate_prompt_tokens: Any = None
    kv_transfer_params: Any = None
    prompt_embeds: Any = None

    def check(self) -> None:
        """Raise NotExact where the engine takes other tokens than the text gives."""
        if self.truncate_prompt_tokens is not None or self.prompt_embeds is not None:
            raise NotExact("a prompt that the engine cuts or is given as vectors")
        transfer = self.kv_transfer_params
        if isinstance(transfer, dict) and transfer.get("prompt_token_ids") is not None:
            raise NotExact("tokens that an earlier stage forwards")


class ExactChat(ExactBody, gc=False):
    """``/v1/chat/completions``."""

    messages: list[dict[str, Any]] = msgspec.field(default_factory=list)
    tools: Raw = ABSENT
    documents: Raw = ABSENT
    chat_template: str | None = None
    chat_template_kwargs: Raw = ABSENT
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    reasoning_effort: str | None = None

    def variables(self) -> dict[str, Any]:
        """Return what the template may read beside messages and tools.

        Raises:
            NotExact: A variable that the engine takes for something else.
        """
        given = load(self.chat_template_kwargs)
        if not isinstance(given, dict | None):
            raise NotExact("chat_template_kwargs that are no object")
        values = dict(given or {})
        if not _RESERVED.isdisjoint(values):
            raise NotExact("chat_template_kwargs with a reserved name")
        for name in _OWN_FIELDS:
            values.pop(name, None)
        documents = load(self.documents)
        if documents is not None:
            values["documents"] = documents
        if self.reasoning_effort is not None:
            values["reasoning_effort"] = self.reasoning_effort
            if "enable_thinking" not in values:
                values["enable_thinking"] = self.reasoning_effort != "none"
        return {name: one for name, one in values.items() if one not in _UNSET}


class ExactCompletion(ExactBody, gc=False):
    """``/v1/completions``; token ids need no reading."""

    prompt: str | list[str] = ""
    add_special_tokens: bool = True
    suffix: Any = None

    def texts(self) -> list[str]:
        """Return the prompts, empty ones left out.

        Raises:
            NotExact: The engine writes a form of its own around the text.
        """
        if self.suffix is not None:
            raise NotExact("a suffix, around which the engine writes marks")
        prompts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        return [text for text in prompts if text]


_decode_chat = msgspec.json.Decoder(ExactChat).decode
_decode_completion = msgspec.json.Decoder(ExactCompletion).decode


def decode_exact(kind: str, body: bytes) -> ExactChat | ExactCompletion:
    """Read the body of a chat, or of a completion.

    Raises:
        NotExact: It is not as the engines document it.
    """
    try:
        fields = _decode_chat(body) if kind == "chat" else _decode_completion(body)
    except UNREADABLE as error:
        raise NotExact("a body with a field of another type") from error
    fields.check()
    return fields


def load(raw: Raw) -> Any:
    """Read JSON as engines do it, None where the field is left out.

    Raises:
        NotExact: It is nested too deeply.
    """
    try:
        return json.loads(bytes(raw)) if len(raw) else None
    except UNREADABLE as error:
        raise NotExact("JSON that Python does not read") from error
