"""One model's own way from a request body to tokens."""

from collections import OrderedDict
from collections.abc import Mapping

from warmroute.adapters.tokens.chat_template import ChatTemplate
from warmroute.adapters.tokens.content_format import takes_parts
from warmroute.adapters.tokens.conversation import (
    merge_developers,
    read_conversation,
    read_tools,
)
from warmroute.adapters.tokens.errors import NotExact
from warmroute.adapters.tokens.files import DEFAULT, TokenizerFiles
from warmroute.proxy.prompt.encoder import Draft, Encoder
from warmroute.proxy.prompt.exact_bodies import (
    ExactChat,
    ExactCompletion,
    load,
)
from warmroute.proxy.prompt.memo import TokenMemo

_TOOL_USE = "tool_use"


class Renderer:
    """Write a model's prompts as its engine does, from its own files.

    Args:
        files: Tokenizer and chat templates.
        memo: What was tokenized before.

    Raises:
        ModelError: A chat template is no valid Jinja.
    """

    __slots__ = ("_parts", "_templates", "encoder")

    def __init__(self, files: TokenizerFiles, memo: TokenMemo) -> None:
        self.encoder = Encoder(files.tokenizer, memo)
        self._templates: Mapping[str, ChatTemplate] = OrderedDict(
            (name, ChatTemplate(source, files.named))
            for name, source in files.templates.items()
        )
        self._parts = {
            name: takes_parts(source) for name, source in files.templates.items()
        }

    def __repr__(self) -> str:
        return f"<Renderer {self.encoder!r} templates={list(self._templates)}>"

    def draft(self, fields: ExactChat | ExactCompletion) -> Draft:
        """Render, and look up what is known. O(bytes), all of it with the GIL.

        Raises:
            NotExact: What the engine makes of the request is not certain.
            ModelError: The template refuses it, as that of the engine would.
        """
        if isinstance(fields, ExactChat):
            return self.encoder.draft([(self.write(fields), fields.add_special_tokens)])
        is_framed = fields.add_special_tokens
        return self.encoder.draft([(text, is_framed) for text in fields.texts()])

    def write(self, fields: ExactChat) -> str:
        """Return the text of a chat.

        Raises:
            NotExact, ModelError: As `draft`.
        """
        tools = read_tools(load(fields.tools))
        name = self._choose(fields.chat_template, has_tools=tools is not None)
        template = self._templates[name]
        messages = read_conversation(fields.messages, parts=self._parts[name])
        if not messages:
            raise NotExact("a chat without messages")
        return template.write(
            merge_developers(messages, template.source),
            tools=tools,
            add_generation_prompt=fields.add_generation_prompt,
            continue_final_message=fields.continue_final_message,
            **fields.variables(),
        )

    def _choose(self, asked: str | None, *, has_tools: bool) -> str:
        """Return the name of the template, by transformers' rules.

        A request may name one of the model's. One of its own would be run here for
        anybody who can send a request: that is left to the engine.
        """
        known = self._templates
        if asked is not None:
            if len(known) < 2 or asked not in known:
                raise NotExact("a chat template that is the request's own")
            return asked
        if has_tools and len(known) > 1 and _TOOL_USE in known:
            return _TOOL_USE
        if DEFAULT not in known:
            raise NotExact("a model without a chat template")
        return DEFAULT
