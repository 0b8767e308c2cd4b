"""The fields of a body that a chat template turns into a prompt."""

from typing import Any

import msgspec

from warmroute.adapters.embedded.server.errors import BadField
from warmroute.adapters.embedded.server.messages import read_messages
from warmroute.adapters.embedded.server.serving import Serving

# What the fields of the body already say.
_RESERVED = frozenset(
    {
        *("messages", "tools", "add_generation_prompt", "continue_final_message"),
        *("add_special_tokens", "chat_template", "tokenize"),
    }
)


class ChatPrompt(msgspec.Struct, kw_only=True):
    """The prompt of ``/v1/chat/completions`` and of ``/tokenize`` for a chat."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def turn(self) -> int:
        """Return the turn of the conversation, from 1: the user's messages so far."""
        return max(1, sum(1 for one in self.messages if one.get("role") == "user"))

    async def encode(self, serving: Serving) -> list[int]:
        """Return the token ids of the rendered chat.

        Raises:
            BadField: The messages or tools cannot be rendered.
        """
        self._check()
        return await serving.encode_chat(
            read_messages(self.messages),
            tools=self.tools or None,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            **self.chat_template_kwargs,
        )

    def _check(self) -> None:
        if self.add_special_tokens:
            raise BadField(
                "add_special_tokens",
                "not supported for chats, whose template writes the special tokens; "
                "leave it out, or send false",
                "unsupported_parameter",
            )
        if self.add_generation_prompt and self.continue_final_message:
            raise BadField(
                "continue_final_message",
                "cannot be true together with add_generation_prompt; send "
                "add_generation_prompt as false",
            )
        taken = _RESERVED & self.chat_template_kwargs.keys()
        if taken:
            raise BadField(
                "chat_template_kwargs",
                f"must not hold {', '.join(sorted(taken))}: the body has a field "
                "of that name, or it cannot be changed",
            )
        for at, tool in enumerate(self.tools or ()):
            function = tool.get("function")
            if not isinstance(function, dict) or not function.get("name"):
                raise BadField(
                    f"tools[{at}]",
                    'must look like {"type": "function", "function": {"name": ...}}',
                )
