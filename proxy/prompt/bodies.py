"""The request bodies of the engines' APIs: only the fields that routing needs.

Unknown fields are skipped by the decoder. Fields outside of the prompt are ``Any``,
so that a wrong type there does not cost the prompt; those of the prompt are strict.
"""

import json
from typing import Any

from msgspec import UNSET, Raw, Struct

MAX_TOKENS = 1 << 31
UNREADABLE = (ValueError, TypeError, OverflowError, RecursionError)
_MAX_LENIENT_BYTES = 1 << 18

ABSENT = Raw()
"""The value of a raw field that the body leaves out."""

Prompts = str | list[int | str | list[int]] | None
"""A text, several texts, token ids, or several lists of token ids."""


class Part(Struct, gc=False):
    """One part of a message's content, of any of the APIs."""

    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    thinking: Any = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    content: "str | list[Part | str] | None" = None
    image_url: Raw = ABSENT
    input_audio: Raw = ABSENT
    audio_url: Raw = ABSENT
    video_url: Raw = ABSENT
    file: Raw = ABSENT
    source: Raw = ABSENT
    file_id: Raw = ABSENT
    file_url: Raw = ABSENT
    file_data: Raw = ABSENT
    image: Raw = ABSENT
    audio: Raw = ABSENT
    video: Raw = ABSENT
    image_embeds: Raw = ABSENT
    audio_embeds: Raw = ABSENT
    data: Raw = ABSENT
    uuid: Raw = ABSENT


Content = str | list[Part | str] | None
"""The content of a message: a text, parts, or nothing."""


class Function(Struct, gc=False):
    """The function that a tool call names."""

    name: str | None = None
    arguments: Any = None


class ToolCall(Struct, gc=False):
    """A tool call in an assistant's message."""

    id: str | None = None
    function: Function | None = None
    custom: Any = None


class Message(Struct, gc=False):
    """A message of OpenAI's chat or of Anthropic's messages."""

    role: str = ""
    content: Content = None
    name: str | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: Function | None = None
    audio: Any = None


class Item(Struct, gc=False):
    """An input item of OpenAI's responses."""

    type: str | None = None
    role: str | None = None
    content: Content = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: Any = None
    output: str | list[Part | str] | dict[str, Any] | None = None
    input: Any = None
    summary: list[Part] | None = None
    encrypted_content: str | None = None
    action: Any = None
    code: Any = None


class Body(Struct, gc=False):
    """The fields outside of the prompt, common to all shapes."""

    model: Any = None
    stream: Any = None
    stream_options: Any = UNSET
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    sampling_params: Any = None
    session_id: Any = None
    prompt_cache_key: Any = None
    conversation: Any = None
    user: Any = None
    metadata: Any = None
    session_params: Any = None
    previous_response_id: Any = None
    rid: Any = None
    cache_salt: Any = None
    extra_key: Any = None
    lora_path: Any = None

    def asks_usage(self) -> bool:
        """Tell whether ``stream_options`` asks for usage at the end."""
        options = self.stream_options
        return type(options) is dict and options.get("include_usage") is True

    def answer_limit(self) -> int | None:
        """Return the bound on the answer in tokens, None without a sane one."""
        limit = self.max_completion_tokens
        if limit is None:
            limit = self.max_tokens
        if limit is None:
            limit = self.max_output_tokens
        if limit is None and type(self.sampling_params) is dict:
            sampling = self.sampling_params
            limit = sampling.get("max_new_tokens", sampling.get("max_tokens"))
        return limit if type(limit) is int and 0 <= limit <= MAX_TOKENS else None

    def session_key(self) -> str | None:
        """Return what names the session, the most specific field first."""
        for value in (
            self.session_id,
            self.session_params,
            self.prompt_cache_key,
            self.conversation,
            self.user,
        ):
            if value is not None and (key := _find_text(value, ("id",))):
                return key
        if self.metadata is not None:
            return _find_text(self.metadata, ("session_id", "user_id"))
        return None

    def pin_key(self) -> str | None:
        """Return the earlier response or the request id that binds a backend."""
        for value in (self.previous_response_id, self.rid):
            if value is not None and (key := _find_text(value, ())):
                return key
        return None


def _find_text(value: Any, names: tuple[str, ...]) -> str | None:
    """Return a text, the first of a list of texts, or the first member named."""
    if type(value) is dict:
        found = [value.get(name) for name in names]
    else:
        found = value[:1] if type(value) is list else [value]
    return next((text for text in found if type(text) is str and text), None)


def read_any_json(body: bytes) -> Body:
    """Read what Python's own parser takes, as engines use it: NaN, surrogates.

    Up to 256 KiB. What is no JSON object gives a body without fields.
    """
    if len(body) > _MAX_LENIENT_BYTES:
        return Body()
    try:
        found = json.loads(body)
    except UNREADABLE:
        return Body()
    if not isinstance(found, dict):
        return Body()
    model = found.get("model")
    if isinstance(model, str):
        model = model.encode("utf-8", "replace").decode()
    return Body(model, found.get("stream"), found.get("stream_options"))


class ChatBody(Body, gc=False):
    """``/v1/chat/completions``."""

    messages: list[Message] | None = None
    tools: Raw = ABSENT
    functions: Raw = ABSENT
    documents: Raw = ABSENT
    chat_template: Raw = ABSENT
    chat_template_kwargs: Raw = ABSENT
    reasoning_effort: Raw = ABSENT


class CompletionBody(Body, gc=False):
    """``/v1/completions``."""

    prompt: Prompts = None


class ResponsesBody(Body, gc=False):
    """``/v1/responses``."""

    input: str | list[Item] | None = None
    instructions: str | None = None
    tools: Raw = ABSENT
    reasoning: Raw = ABSENT


class EmbeddingsBody(ChatBody, gc=False):
    """``/v1/embeddings``, ``/v1/classify`` and ``/pooling``."""

    input: Prompts = None


class PairsBody(Body, gc=False):
    """``/v1/rerank`` and ``/v1/score``: one prompt a pair of texts."""

    query: str | None = None
    documents: list[Part | str] | None = None
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    items: str | list[str] | None = None


class MessagesBody(Body, gc=False):
    """Anthropic's ``/v1/messages``."""

    messages: list[Message] | None = None
    system: Content = None
    tools: Raw = ABSENT


class GenerateBody(Body, gc=False):
    """SGLang's ``/generate``, and vLLM's ``/inference/v1/generate``."""

    text: str | list[str] | None = None
    input_ids: Prompts = None
    token_ids: Prompts = None
    image_data: Raw = ABSENT
    video_data: Raw = ABSENT
    audio_data: Raw = ABSENT
