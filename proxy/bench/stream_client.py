"""Completions of token ids, streamed, with the time of each token."""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import aiohttp

from warmroute.proxy.bench.errors import BenchError

_MAX_EVENT_BYTES = 1 << 20


@dataclass(slots=True)
class Timed:
    """One answer.

    Attributes:
        sent_at: When the request went out; monotonic seconds.
        tokens_at: When each event with text came.
        num_tokens: Tokens as the engine counts them, or the events.
    """

    sent_at: float
    tokens_at: list[float] = field(default_factory=list)
    num_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token."""
        return self.tokens_at[0] - self.sent_at

    def tokens_within(self, start: float, end: float) -> float:
        """Count the tokens after *start* and until *end*.

        A busy engine may send several in one event, so events are weighed.
        """
        events = sum(start < at <= end for at in self.tokens_at)
        return events * self.num_tokens / len(self.tokens_at)


class StreamClient:
    """Ask one engine for completions; raises BenchError for what is no answer.

    Args:
        session: Borrowed; its owner closes it.
        url: Where the engine listens.
        model: Name that requests put into ``model``.
        headers: Sent with each request.
        timeout_s: Bound of one answer.
    """

    __slots__ = ("_headers", "_model", "_session", "_timeout", "_url")

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        model: str,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> None:
        self._session = session
        self._url = url.rstrip("/") + "/v1/completions"
        self._model = model
        self._headers = headers
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    def __repr__(self) -> str:
        return f"<StreamClient {self._url}>"

    async def complete(self, prompt: Sequence[int], max_tokens: int) -> Timed:
        """Generate exactly *max_tokens* behind *prompt*, and time them."""
        body = {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        timed = Timed(time.monotonic())
        with self._explained():
            async with self._session.post(
                self._url,
                json=body,
                headers=self._headers,
                timeout=self._timeout,
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    text = (await response.content.read(300)).decode(errors="replace")
                    raise BenchError(
                        f"{self._url} answered HTTP {response.status} to a prompt of "
                        f"{len(prompt)} token ids: {text}"
                    )
                await _read(response, timed)
        if not timed.tokens_at:
            raise BenchError(f"{self._url} streamed no token")
        timed.num_tokens = timed.num_tokens or len(timed.tokens_at)
        return timed

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say what went wrong on the way to the engine and back."""
        try:
            yield
        except TimeoutError as error:
            raise BenchError(
                f"{self._url} did not finish an answer within "
                f"{self._timeout.total:g} s; raise --timeout or lower --max-prompt"
            ) from error
        except aiohttp.ClientConnectorError as error:
            number = error.errno or 0  # negative where the name was not found
            why = os.strerror(number) if number > 0 else str(error)
            raise BenchError(
                f"{self._url} cannot be reached: {why}; start the engine, or correct "
                "--calibrate"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise BenchError(f"{self._url} failed: {error!r}") from error


async def _read(response: aiohttp.ClientResponse, timed: Timed) -> None:
    unread = b""
    async for piece in response.content.iter_any():
        now = time.monotonic()
        unread += piece
        *events, unread = unread.split(b"\n\n")
        if len(unread) > _MAX_EVENT_BYTES:
            raise BenchError(f"an event of over {_MAX_EVENT_BYTES} bytes came")
        for event in events:
            _take(event, now, timed)


def _take(event: bytes, now: float, timed: Timed) -> None:
    data = event.strip().removeprefix(b"data:").strip()
    if not data.startswith(b"{"):
        return
    try:
        told = json.loads(data)
    except ValueError as error:
        raise BenchError(f"an event is not JSON: {data[:60]!r}") from error
    if "error" in told:
        raise BenchError(f"the engine streamed an error: {str(told['error'])[:200]}")
    if told.get("choices"):
        timed.tokens_at.append(now)
    usage = told.get("usage")
    if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
        timed.num_tokens = usage["completion_tokens"]
