"""Prompts and chats to token ids, as vLLM's own server makes them."""

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

from warmroute.adapters.kv_requests import BlocksRequest
from warmroute.policies.errors import ClientError


class Tokenization(Protocol):
    """What answers ``/tokenize`` (``ServingTokenization``)."""

    async def create_tokenize(self, request: object, raw_request: object) -> Any:
        """Tokenize; an error comes back as a value."""
        ...


class ServerTokens:
    """Tokenize what a call names its blocks by.

    Args:
        serving: The server's ``/tokenize``.
        raw: The HTTP request, which vLLM takes a request id from.
        longest: Most tokens that a request can have; none behind them is cached.
    """

    __slots__ = ("_longest", "_raw", "_serving")

    def __init__(self, serving: Tokenization, raw: object, longest: int) -> None:
        self._serving = serving
        self._raw = raw
        self._longest = longest

    def __repr__(self) -> str:
        return f"<ServerTokens of {type(self._serving).__name__}>"

    async def tokenize(self, request: BlocksRequest) -> Sequence[int]:
        """Return the token ids.

        Raises:
            ClientError: 400, the server refuses, with its reason.
        """
        if request.token_ids is not None:
            return request.token_ids[: self._longest]
        try:
            answer = await self._serving.create_tokenize(_asked(request), self._raw)
        except (ValueError, TypeError) as error:
            raise _unreadable(str(error)) from error
        fault = getattr(answer, "error", None)
        if fault is not None:
            raise _unreadable(str(fault.message))
        return [int(token) for token in answer.tokens[: self._longest]]


def _asked(request: BlocksRequest) -> object:
    protocol: Any = importlib.import_module("vllm.entrypoints.serve.tokenize.protocol")
    if request.prompt is not None:
        return protocol.TokenizeCompletionRequest(prompt=request.prompt)
    return protocol.TokenizeChatRequest(
        messages=request.messages,
        tools=request.tools,
        add_generation_prompt=request.add_generation_prompt,
    )


def _unreadable(reason: str) -> ClientError:
    return ClientError(400, "kv_request_invalid", f"blocks cannot be named: {reason}")
