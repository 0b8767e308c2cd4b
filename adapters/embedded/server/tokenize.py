"""Text to token ids and back, as vLLM offers it."""

from typing import Any

import msgspec
from aiohttp import web

from warmroute.adapters.embedded.server.body import convert_fields, read_object
from warmroute.adapters.embedded.server.chat_prompt import ChatPrompt
from warmroute.adapters.embedded.server.errors import BadField
from warmroute.adapters.embedded.server.facts import json_answer
from warmroute.adapters.embedded.server.openai_fields import select_known
from warmroute.adapters.embedded.server.serving import Serving


class TextFields(msgspec.Struct, kw_only=True):
    """The body of ``POST /tokenize`` for a text."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class ChatFields(ChatPrompt, kw_only=True):
    """The body of ``POST /tokenize`` for a chat."""

    model: str | None = None
    return_token_strs: bool = False


class DetokenizeFields(msgspec.Struct, kw_only=True):
    """The body of ``POST /detokenize``."""

    tokens: list[int]
    model: str | None = None


class Tokenize:
    """The handlers of both directions."""

    __slots__ = ("_serving",)

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def tokenize(self, request: web.Request) -> web.Response:
        """Return the token ids of a text or of a rendered chat."""
        body = await read_object(request)
        if "messages" in body:
            fields: TextFields | ChatFields = _read(body, ChatFields)
        else:
            fields = _read(body, TextFields)
        self._serving.check_model(fields.model)
        if isinstance(fields, TextFields):
            ids = await self._serving.encode(
                fields.prompt, add_special=fields.add_special_tokens
            )
        else:
            ids = await fields.encode(self._serving)
        answer: dict[str, object] = {
            "count": len(ids),
            "max_model_len": self._serving.engine.limits.max_model_len,
            "tokens": ids,
            "token_strs": None,
        }
        if fields.return_token_strs:
            answer["token_strs"] = [*map(self._serving.tokenizer.token, ids)]
        return json_answer(answer)

    async def detokenize(self, request: web.Request) -> web.Response:
        """Return the text of token ids."""
        fields = _read(await read_object(request), DetokenizeFields)
        self._serving.check_model(fields.model)
        size = self._serving.engine.limits.vocab_size
        wrong = next((one for one in fields.tokens if not 0 <= one < size), None)
        if wrong is not None:
            raise BadField(
                "tokens",
                f"holds the token id {wrong} (allowed: 0 to {size - 1})",
                "token_out_of_vocabulary",
            )
        text = self._serving.tokenizer.decode(fields.tokens, skip_special=False)
        return json_answer({"prompt": text})


def _read(body: dict[str, Any], kind: type[Any]) -> Any:
    return convert_fields(select_known(body, kind.__struct_fields__), kind)
