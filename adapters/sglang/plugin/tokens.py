"""Prompts and chats to token ids, as SGLang's own server makes them."""

import importlib
from collections.abc import Sequence
from typing import Any, cast

from warmroute.adapters.kv_plugin.tokens import PromptTokens, unreadable
from warmroute.adapters.kv_requests import BlocksRequest


class ServerTokens(PromptTokens):
    """Tokenize what a call names its blocks by.

    Args:
        serving: The server's ``/v1/tokenize``.
        longest: Most tokens that a request can have; none behind them is cached.
    """

    __slots__ = ("_serving",)

    def __init__(self, serving: Any, longest: int) -> None:
        super().__init__(longest)
        self._serving = serving

    def __repr__(self) -> str:
        return f"<ServerTokens of {type(self._serving).__name__}>"

    async def _ask(self, request: BlocksRequest) -> Sequence[int]:
        asked = _asked(request)
        answer = await self._serving._handle_non_streaming_request(asked, asked, None)
        tokens = getattr(answer, "tokens", None)
        if tokens is None:
            body = bytes(getattr(answer, "body", b"")).decode(errors="replace")
            raise unreadable(body[:500] or "the server refuses")
        return cast(Sequence[int], tokens)


def _asked(request: BlocksRequest) -> object:
    protocol: Any = importlib.import_module("sglang.srt.entrypoints.openai.protocol")
    if request.prompt is not None:
        return protocol.TokenizeRequest(prompt=request.prompt)
    question: dict[str, object] = {"messages": request.messages}
    if request.tools:
        question["tools"] = request.tools
    if not request.add_generation_prompt:
        question["add_generation_prompt"] = False
    return protocol.TokenizeRequest(**question)
