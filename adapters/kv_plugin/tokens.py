"""Prompts and chats to token ids, as an engine's own server makes them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from warmroute.adapters.kv_requests import BlocksRequest
from warmroute.policies.errors import ClientError


class PromptTokens(ABC):
    """Tokenize what a call names its blocks by; a subclass asks the server.

    Args:
        longest: Most tokens that a request can have; none behind them is cached.
    """

    __slots__ = ("_longest",)

    def __init__(self, longest: int) -> None:
        self._longest = longest

    async def tokenize(self, request: BlocksRequest) -> Sequence[int]:
        """Return the token ids.

        Raises:
            ClientError: 400, the server refuses, with its reason.
        """
        if request.token_ids is not None:
            return request.token_ids[: self._longest]
        try:
            tokens = await self._ask(request)
            return [int(token) for token in tokens[: self._longest]]
        except (ValueError, TypeError) as error:
            raise unreadable(str(error)) from error

    @abstractmethod
    async def _ask(self, request: BlocksRequest) -> Sequence[int]:
        """Have the server tokenize a prompt or a chat."""


def unreadable(reason: str) -> ClientError:
    """Return the refusal of what the server cannot tokenize."""
    return ClientError(400, "kv_request_invalid", f"blocks cannot be named: {reason}")
