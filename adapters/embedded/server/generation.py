"""The work of one HTTP request: a stream of the engine for each prompt."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from warmroute.adapters.embedded.engine.request import GenerationRequest
from warmroute.adapters.embedded.engine.stream import Delta, RequestStream
from warmroute.adapters.embedded.server.port import EnginePort

_Item = tuple[int, Delta] | Exception | None


class Generation:
    """Submit on entry, merge the streams, and abort what still runs on exit.

    Iterating yields the prompt's index with each delta. An error of one stream
    is raised to the reader and so ends the others.
    """

    __slots__ = (
        "_engine",
        "_num_ended",
        "_pumps",
        "_queue",
        "_streams",
        "completion_tokens",
        "requests",
    )

    def __init__(
        self, engine: EnginePort, requests: Sequence[GenerationRequest]
    ) -> None:
        self.requests = requests
        self.completion_tokens = 0
        self._engine = engine
        self._streams: list[RequestStream] = []
        self._num_ended = 0
        self._pumps: list[asyncio.Task[None]] = []
        self._queue: asyncio.Queue[_Item] = asyncio.Queue()

    def __repr__(self) -> str:
        return f"<Generation [{len(self.requests)} prompts]>"

    async def __aenter__(self) -> Self:
        try:
            for request in self.requests:
                self._streams.append(self._engine.submit(request))
        except BaseException:
            self._abort()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        self._abort()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, Delta]:
        at, delta = await self._next()
        self.completion_tokens += len(delta.token_ids)
        return at, delta

    def usage(self) -> dict[str, object]:
        """Return OpenAI's usage object, for what was generated so far."""
        prompt_tokens = sum(len(request.prompt_ids) for request in self.requests)
        cached = sum(stream.num_cached_tokens for stream in self._streams)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    async def _next(self) -> tuple[int, Delta]:
        if len(self._streams) == 1:
            return 0, await anext(self._streams[0])
        if not self._pumps:
            self._pumps = [
                asyncio.create_task(self._pump(at, stream))
                for at, stream in enumerate(self._streams)
            ]
        while self._num_ended < len(self._pumps):
            item = await self._queue.get()
            if isinstance(item, Exception):
                raise item
            if item is not None:
                return item
            self._num_ended += 1
        raise StopAsyncIteration

    async def _pump(self, at: int, stream: RequestStream) -> None:
        try:
            async for delta in stream:
                self._queue.put_nowait((at, delta))
        except Exception as error:  # raised again by the reader
            self._queue.put_nowait(error)
        else:
            self._queue.put_nowait(None)

    def _abort(self) -> None:
        for stream in self._streams:
            stream.abort()
