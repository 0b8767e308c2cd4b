"""Prompts and chats to token ids, as vLLM's own server makes them."""

import importlib
from collections.abc import Sequence
from typing import Any, Protocol, cast

from warmroute.adapters.kv_plugin.tokens import PromptTokens, unreadable
from warmroute.adapters.kv_requests import BlocksRequest


class Tokenization(Protocol):
    """What answers ``/tokenize`` (``ServingTokenization``)."""

    async def create_tokenize(self, request: object, raw_request: object) -> Any:
        """Tokenize; an error comes back as a value."""
        ...


class ServerTokens(PromptTokens):
    """Tokenize what a call names its blocks by.

    Args:
        serving: The server's ``/tokenize``.
        raw: The HTTP request, which vLLM takes a request id from.
        longest: Most tokens that a request can have; none behind them is cached.
    """

    __slots__ = ("_raw", "_serving")

    def __init__(self, serving: Tokenization, raw: object, longest: int) -> None:
        super().__init__(longest)
        self._serving = serving
        self._raw = raw

    def __repr__(self) -> str:
        return f"<ServerTokens of {type(self._serving).__name__}>"

    async def _ask(self, request: BlocksRequest) -> Sequence[int]:
        answer = await self._serving.create_tokenize(_asked(request), self._raw)
        fault = getattr(answer, "error", None)
        if fault is not None:
            raise unreadable(str(fault.message))
        return cast(Sequence[int], answer.tokens)


def _asked(request: BlocksRequest) -> object:
    protocol: Any = importlib.import_module("vllm.entrypoints.serve.tokenize.protocol")
    if request.prompt is not None:
        return protocol.TokenizeCompletionRequest(prompt=request.prompt)
    return protocol.TokenizeChatRequest(
        messages=request.messages,
        tools=request.tools,
        add_generation_prompt=request.add_generation_prompt,
    )
