"""The answer to one request, as it is generated."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from warmroute.adapters.embedded.engine.request import GenerationRequest
from warmroute.policies.errors import WarmrouteError

FinishReason = Literal["stop", "length", "abort", "error"]


class EngineFailed(WarmrouteError):
    """The engine failed at this request; what was generated so far is all."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Give a sampled token's log probability, before temperature and top-p.

    Args:
        token_id: The sampled token.
        logprob: Its natural log probability.
        top: The most likely tokens and theirs, most likely first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """Hold what one choice gained.

    Args:
        index: The choice.
        token_ids: New tokens; end tokens and those of a stop string included.
        text: New text; may lag behind the tokens while it could be a stop string.
        finish_reason: Why the choice ended, None while it goes on.
        stop_reason: The stop string or the end token that ended it.
        logprobs: One for each new token, when asked for.
    """

    index: int
    token_ids: list[int]
    text: str
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


class RequestStream:
    """Iterate over the deltas of a request: ``async for delta in stream``.

    It ends after the last delta of the last choice. Closing it, or dropping it
    unfinished, aborts the request. All methods belong to the event loop.

    Args:
        request: The request as submitted.
        abort: Tells the engine to stop; safe from any thread.
    """

    __slots__ = (
        "__weakref__",
        "_abort",
        "_deltas",
        "_error",
        "_open",
        "_ready",
        "num_cached_tokens",
        "request",
    )

    def __init__(self, request: GenerationRequest, abort: Callable[[], None]) -> None:
        self.request = request
        self.num_cached_tokens = 0
        self._abort = abort
        self._deltas: deque[Delta] = deque()
        self._error: EngineFailed | None = None
        self._open = request.n
        self._ready = asyncio.Event()

    def __repr__(self) -> str:
        return (
            f"<RequestStream {self.request.request_id}: {self._open} choices open, "
            f"{len(self._deltas)} deltas unread>"
        )

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> Delta:
        """Return the next delta.

        Raises:
            EngineFailed: The engine failed at this request.
        """
        while not self._deltas:
            if self._error is not None:
                raise self._error
            if not self._open:
                raise StopAsyncIteration
            self._ready.clear()
            await self._ready.wait()
        return self._deltas.popleft()

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()

    def __del__(self) -> None:
        if self._open:
            self._abort()

    @property
    def is_finished(self) -> bool:
        """Tell whether every choice has ended, read or not."""
        return not self._open

    def abort(self) -> None:
        """Ask the engine to stop; open choices end with the reason ``abort``."""
        if self._open:
            self._abort()

    def push(self, delta: Delta, num_cached_tokens: int) -> None:
        """Add a delta from the engine."""
        self.num_cached_tokens = num_cached_tokens
        self._deltas.append(delta)
        self._open -= delta.finish_reason is not None
        self._ready.set()

    def fail(self, error: EngineFailed) -> None:
        """End the stream with an error, after the deltas that it has."""
        self._error = error
        self._open = 0
        self._ready.set()
