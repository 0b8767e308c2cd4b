"""Chat templates: Jinja in a sandbox, with the conventions of Hugging Face."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Environment, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from warmroute.adapters.tokens.errors import ModelError

Message = Mapping[str, Any]

# The word of transformers: there are templates that look for it (LFM2.5).
_MARK = "CONTINUE_FINAL_MESSAGE_TAG "


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
            self._template = make_environment().from_string(source)
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
        plain = [_with_plain_content(message) for message in messages]
        return self.write(
            plain,
            tools=list(tools) if tools else None,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **variables,
        )

    def write(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        **variables: Any,
    ) -> str:
        """Write *messages* as they are; otherwise as `render`.

        With *continue_final_message* a mark goes behind the last text, and the
        result is cut there, as transformers does it.

        Raises:
            ModelError: The template refuses the messages, or fails on them.
        """
        if continue_final_message and add_generation_prompt:
            raise ModelError(
                "continue_final_message and add_generation_prompt are both set "
                "(allowed: one of them); set add_generation_prompt to false"
            )
        final = ""
        if continue_final_message:
            self._check_shows_content()
            marked, final = _with_mark(messages[-1:])
            messages = [*messages[:-1], marked]
        values: dict[str, Any] = {"tools": None, "documents": None}
        values |= {**self._special_tokens, **variables, "messages": messages}
        values["add_generation_prompt"] = add_generation_prompt
        try:
            text = self._template.render(values)
        except Exception as error:  # a template may raise anything at all
            raise ModelError(
                f"the chat template refused the messages: {error}"
            ) from error
        return _cut_at_mark(text, final) if continue_final_message else text

    def _check_shows_content(self) -> None:
        if "content" not in self.source:
            raise ModelError(
                "continue_final_message is set, but the chat template does not name "
                "the content of messages"
            )


class Generation(Extension):
    """Let templates mark the assistant's part; the mark writes nothing.

    What is set between the tags stays there, as in transformers.
    """

    tags = {"generation"}  # noqa: RUF012  # as the base class has it

    def parse(self, parser: Parser) -> nodes.Node:
        """Return what stands between the tags, as a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_write")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _write(self, caller: Macro) -> str:
        return caller()


def make_environment() -> Environment:
    """Return the sandbox that templates are read and run in."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without the escapes that Jinja adds for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


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


def _with_mark(final: Sequence[Message]) -> tuple[Message, str]:
    """Return the last message with the mark behind its last text, and that text."""
    content = final[0].get("content") if final else None
    if isinstance(content, str):
        return {**final[0], "content": content + _MARK}, content
    parts = list(content) if isinstance(content, list) else []
    for at in range(len(parts) - 1, -1, -1):
        if "text" in parts[at]:
            text = parts[at]["text"]
            parts[at] = {**parts[at], "text": text + _MARK}
            return {**final[0], "content": parts}, text
    raise ModelError(
        "continue_final_message is set, but the last message has no content; "
        "give it a text that the answer shall continue"
    )


def _cut_at_mark(text: str, final: str) -> str:
    """Cut the mark and what the template wrote behind it."""
    at = text.rfind(_MARK.strip())
    if at < 0 or final.strip() not in text:
        raise ModelError(
            "continue_final_message is set, but the chat template does not show the "
            "content of the last message as it is"
        )
    # A mark without its space was stripped, and so was the text in front of it.
    return text[:at] if text.startswith(_MARK, at) else text[:at].rstrip()
