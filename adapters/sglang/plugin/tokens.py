"""Prompts and chats to token ids, as SGLang's own server makes them."""

import importlib
from collections.abc import Sequence
from typing import Any

from warmroute.adapters.kv_requests import BlocksRequest
from warmroute.policies.errors import ClientError


class ServerTokens:
    """Tokenize what a call names its blocks by.

    Args:
        serving: The server's ``/v1/tokenize``.
        longest: Most tokens that a request can have; none behind them is cached.
    """

    __slots__ = ("_longest", "_serving")

    def __init__(self, serving: Any, longest: int) -> None:
        self._serving = serving
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
            asked = _asked(request)
        except (ValueError, TypeError) as error:
            raise _unreadable(str(error)) from error
        answer = await self._serving._handle_non_streaming_request(asked, asked, None)
        tokens = getattr(answer, "tokens", None)
        if tokens is None:
            body = bytes(getattr(answer, "body", b"")).decode(errors="replace")
            raise _unreadable(body[:500] or "the server refuses")
        return [int(token) for token in tokens[: self._longest]]


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


def _unreadable(reason: str) -> ClientError:
    return ClientError(400, "kv_request_invalid", f"blocks cannot be named: {reason}")
