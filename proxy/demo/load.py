"""Play chats against an address and time the answers."""

import asyncio
import json
import math
import random
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import aiohttp

from warmroute.proxy.demo.chats import Chat, Message

_READ_S = 120.0


@dataclass(slots=True)
class Answer:
    """What came back for one request. Times in seconds."""

    request_id: str
    backend: str | None = None
    sent_at: float = 0.0
    ttft_s: float | None = None
    ended_at: float = 0.0
    text: str = ""
    status: int = 0
    finish_reason: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    predicted_tokens: int | None = None
    done_events: int = 0
    error: str | None = None


@dataclass(slots=True)
class Plan:
    """How a replay is played.

    A user turns from one of the *open_chats* he keeps to the next, so that
    more chats are alive than requests are in flight, as in production.
    """

    chats: Sequence[Chat]
    users: int
    open_chats: int
    model: str
    max_tokens: int = 16
    think_s: float = 0.5
    target: Callable[[], str] = field(kw_only=True)
    on_answer: Callable[[Answer], None] = field(default=lambda _: None, kw_only=True)

    @property
    def num_requests(self) -> int:
        """Requests that the whole replay sends."""
        return sum(len(chat.turns) for chat in self.chats)


async def replay(plan: Plan, http: aiohttp.ClientSession) -> list[Answer]:
    """Play all chats of *plan*, as many requests at a time as it has users.

    A user who is done with a chat opens the next one. A failed request is
    recorded, and its chat goes on with what is on record.
    """
    waiting = iter(plan.chats)
    answers: list[Answer] = []
    async with asyncio.TaskGroup() as group:
        for number in range(plan.users):
            group.create_task(_user(number, waiting, plan, http, answers))
    return answers


async def ask(
    http: aiohttp.ClientSession,
    url: str,
    model: str,
    messages: Sequence[Message],
    max_tokens: int,
    **more: object,
) -> Answer:
    """Send one streamed chat request, with *more* keys in its body.

    Never raises for what the server does: an error is in the answer.
    """
    body = {
        **more,
        "model": model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = Answer(uuid.uuid4().hex)
    headers = {"X-Request-Id": answer.request_id, "x-warmroute-explain": "1"}
    timeout = aiohttp.ClientTimeout(total=None, sock_read=_READ_S)
    answer.sent_at = time.monotonic()
    try:
        async with http.post(
            f"{url}/v1/chat/completions", json=body, headers=headers, timeout=timeout
        ) as response:
            answer.status = response.status
            answer.backend = response.headers.get("x-warmroute-backend")
            predicted = response.headers.get("x-warmroute-matched-tokens")
            answer.predicted_tokens = int(predicted) if predicted else None
            await _read(response, answer)
    except (aiohttp.ClientError, TimeoutError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    answer.ended_at = time.monotonic()
    return answer


async def _user(
    number: int,
    waiting: Iterator[Chat],
    plan: Plan,
    http: aiohttp.ClientSession,
    answers: list[Answer],
) -> None:
    pauses = random.Random(number)
    playing: deque[_Playing] = deque()
    while True:
        fresh = islice(waiting, plan.open_chats - len(playing))
        playing.extend(_Playing(chat) for chat in fresh)
        if not playing:
            return
        await asyncio.sleep(plan.think_s * pauses.uniform(0.5, 1.5))
        chat = playing.popleft()
        answer = await chat.turn(plan, http)
        answers.append(answer)
        plan.on_answer(answer)
        if chat.is_going_on:
            playing.append(chat)


class _Playing:
    """A chat under way: what was said, and how many turns are done."""

    __slots__ = ("_chat", "_done", "_history")

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._done = 0
        self._history: list[Message] = list(chat.opening)

    @property
    def is_going_on(self) -> bool:
        return self._done < len(self._chat.turns)

    async def turn(self, plan: Plan, http: aiohttp.ClientSession) -> Answer:
        turn = self._chat.turns[self._done]
        self._done += 1
        self._history.extend(turn.added)
        answer = await ask(
            http, plan.target(), plan.model, self._history, plan.max_tokens
        )
        said = {"role": "assistant", "content": answer.text}
        self._history.append(turn.answer or said)
        return answer


async def _read(response: aiohttp.ClientResponse, answer: Answer) -> None:
    if response.status != 200:
        answer.error = f"{response.status} {(await response.text())[:200]}"
        return
    async for line in response.content:
        if not line.startswith(b"data: "):
            continue
        if line.startswith(b"data: [DONE]"):
            answer.done_events += 1
        else:
            _take(json.loads(line[6:]), answer)
    if answer.done_events != 1 and answer.error is None:
        answer.error = f"stream ended with {answer.done_events} [DONE] events"


def _take(event: dict[str, Any], answer: Answer) -> None:
    if "error" in event:
        answer.error = f"error event: {event['error'].get('message')}"
        return
    for choice in event["choices"]:
        text = choice["delta"].get("content") or ""
        answer.finish_reason = choice["finish_reason"] or answer.finish_reason
        if answer.ttft_s is None and (text or choice["finish_reason"]):
            answer.ttft_s = time.monotonic() - answer.sent_at
        answer.text += text
    usage = event.get("usage")
    if usage:
        details = usage.get("prompt_tokens_details") or {}
        answer.prompt_tokens = usage["prompt_tokens"]
        answer.cached_tokens = details.get("cached_tokens") or 0


def mean(values: Iterable[float]) -> float:
    """Return the mean, 0 of nothing."""
    known = list(values)
    return sum(known) / len(known) if known else 0.0


def percentile(values: Iterable[float], share: float) -> float:
    """Return the nearest-rank percentile, 0 of nothing."""
    ranked = sorted(values)
    if not ranked:
        return 0.0
    return ranked[max(math.ceil(share * len(ranked)), 1) - 1]
