"""Measure what a step of a running engine costs."""

import asyncio
from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from warmroute.proxy.bench.errors import BenchError
from warmroute.proxy.bench.step_fit import DecodeTime, PrefillTime
from warmroute.proxy.bench.stream_client import StreamClient

Progress = Callable[[int, int, str], object]

# Ids that every vocabulary has, and none of its special ones.
_FIRST_ID: Final = 16
_LAST_ID: Final = 250
_SHORTEST: Final = 128
_DECODE_TOKENS: Final = 48
_MIN_WINDOW_TOKENS: Final = 4.0


class Calibration:
    """Time prefills of several lengths, and decodes of several batches and contexts.

    Prompts are random token ids, so none of them is cached. Other traffic spoils the
    measurement: the engine should have nothing else to do.

    Args:
        client: Asks the engine.
        max_prompt: Longest prompt.
        max_batch: Most streams at once.
        reps: Times that each is measured; the best counts.
        on_progress: Told after each measurement.
        rng: Draws the prompts.
    """

    __slots__ = (
        *("_client", "_done", "_max_batch", "_max_prompt", "_on_progress", "_reps"),
        *("_rng", "_total"),
    )

    def __init__(
        self,
        client: StreamClient,
        max_prompt: int,
        max_batch: int,
        reps: int,
        on_progress: Progress = lambda done, total, what: None,
        rng: Random | None = None,
    ) -> None:
        self._client = client
        self._max_prompt = max_prompt
        self._max_batch = max_batch
        self._reps = reps
        self._on_progress = on_progress
        self._rng = rng or Random()
        self._done = self._total = 0

    def __repr__(self) -> str:
        return f"<Calibration {self._done}/{self._total} of {self._client!r}>"

    async def run(self) -> tuple[list[PrefillTime], list[DecodeTime]]:
        """Measure everything.

        Raises:
            BenchError: The engine does not answer as asked.
        """
        lengths = list(_doubled(_SHORTEST, self._max_prompt))
        batches = list(_doubled(1, self._max_batch))
        contexts = sorted({lengths[0], lengths[len(lengths) // 2], lengths[-1]})
        self._done = 0
        self._total = self._reps * (len(lengths) + len(batches) * len(contexts))
        await self._client.complete(self._prompt(_SHORTEST), 4)
        prefills = [await self._prefill(length) for length in lengths]
        decodes = [
            await self._decode(batch, context)
            for context in contexts
            for batch in batches
        ]
        return prefills, decodes

    async def _prefill(self, length: int) -> PrefillTime:
        times = []
        for _ in range(self._reps):
            timed = await self._client.complete(self._prompt(length), 1)
            times.append(timed.ttft_s)
            self._tell(f"prefill of {length}")
        return PrefillTime(length, min(times))

    async def _decode(self, batch: int, context: int) -> DecodeTime:
        times = []
        # Those that begin first must still run when the last one begins.
        tokens = _DECODE_TOKENS
        for _ in range(self._reps):
            seconds = None
            while seconds is None:
                seconds = await self._step_s(batch, context, tokens)
                if seconds is None:
                    tokens *= 2
                    if tokens > 64 * _DECODE_TOKENS:
                        raise BenchError(
                            f"{batch} streams with prompts of {context} tokens never "
                            "ran together; lower --max-batch or --max-prompt"
                        )
            times.append(seconds)
            self._tell(f"decode of {batch} at {context}")
        return DecodeTime(batch, context + tokens / 2, min(times))

    async def _step_s(self, batch: int, context: int, tokens: int) -> float | None:
        """Return the seconds of a step in which all streams ran; None without one."""
        streams = await asyncio.gather(
            *[
                self._client.complete(self._prompt(context), tokens)
                for _ in range(batch)
            ]
        )
        start = max(one.tokens_at[0] for one in streams)
        end = min(one.tokens_at[-1] for one in streams)
        steps = sum(one.tokens_within(start, end) for one in streams) / batch
        if end <= start or steps < _MIN_WINDOW_TOKENS:
            return None
        return (end - start) / steps

    def _prompt(self, length: int) -> list[int]:
        return [self._rng.randint(_FIRST_ID, _LAST_ID) for _ in range(length)]

    def _tell(self, what: str) -> None:
        self._done += 1
        self._on_progress(self._done, self._total, what)


def _doubled(first: int, most: int) -> Iterator[int]:
    """Yield *first* and its doubles up to *most*, which is always there."""
    while first < most:
        yield first
        first *= 2
    yield most
