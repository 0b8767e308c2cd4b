"""Chat templates: Jinja in a sandbox, with the conventions of Hugging Face."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Environment, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from warmroute.adapters.embedded.model.errors import ModelError

Message = Mapping[str, Any]


class ChatTemplate:
    """A model's way of writing a conversation as one text.

    Args:
        source: The template, as Jinja.
        special_tokens: Names that templates use, such as ``bos_token``.

    Raises:
        ModelError: The template is not valid Jinja.
    """

    __slots__ = ("_special_tokens", "_template", "source")

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise ModelError(
                f"the chat template cannot be read: {error}; mend it in the model's "
                "tokenizer_config.json or chat_template.jinja"
            ) from error

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """Write *messages* as one text.

        Contents given as parts are joined first: a text model takes only text.

        Args:
            messages: ``role`` and ``content``, as in OpenAI's API.
            tools: Function descriptions, for templates that show them.
            add_generation_prompt: Whether the assistant's turn is opened.
            continue_final_message: Whether the text ends inside the last message.
            variables: Anything else the template may read.

        Raises:
            ModelError: The template refuses the messages, or fails on them.
        """
        if continue_final_message and add_generation_prompt:
            raise ModelError(
                "continue_final_message and add_generation_prompt are both set "
                "(allowed: one of them); set add_generation_prompt to false"
            )
        plain = [_with_plain_content(message) for message in messages]
        values = {**self._special_tokens, **variables}
        values |= {"messages": plain, "tools": list(tools) if tools else None}
        values["add_generation_prompt"] = add_generation_prompt
        try:
            text = self._template.render(values)
        except Exception as error:  # a template may raise anything at all
            raise ModelError(
                f"the chat template refused the messages: {error}"
            ) from error
        return _cut_after_final(text, plain) if continue_final_message else text


def _environment() -> Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(value: Any, indent: int | None = None) -> str:
    """Write JSON without the escapes that Jinja adds for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _with_plain_content(message: Message) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    texts = []
    for part in content:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part)
            raise ModelError(
                f"a message has a content part of type {kind!r} (allowed: text)"
            )
        texts.append(part["text"])
    return {**message, "content": "\n".join(texts)}


def _cut_after_final(text: str, messages: Sequence[Message]) -> str:
    """Cut what the template wrote behind the last message's content."""
    content = messages[-1].get("content") if messages else None
    if not isinstance(content, str) or content.strip() not in text:
        raise ModelError(
            "continue_final_message is set, but the last message has no content that "
            "the chat template shows"
        )
    start = text.rindex(content.strip())
    kept = content.lstrip()
    if not text.startswith(kept, start):  # the template strips contents
        kept = content.strip()
    return text[: start + len(kept)]
