"""Tokens as the engines themselves make them, asked for and remembered."""

import asyncio
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from warmroute.adapters.tokens.errors import NotExact
from warmroute.policies.errors import AdapterError, ClientError
from warmroute.proxy.fleet import Fleet
from warmroute.proxy.fleet.backend import Backend
from warmroute.proxy.prompt.exact_bodies import ExactChat, ExactCompletion, load
from warmroute.proxy.prompt.memo import TokenMemo

ASK_S = 1.0
MAX_ASKED = 64
MAX_PROMPTS = 8
_AFTER_FAILURE_S = 5.0
_WITHOUT_PATH_S = 60.0
_OWNER = 0

Question = dict[str, Any]


class EngineTokens:
    """Ask the backends of a fleet, one after the other, for the tokens of prompts.

    A backend that fails is left alone for 5 s, one that offers no way for 60 s, so
    that a prompt waits in vain for a second at most, and rarely.

    Args:
        fleet: Whose backends are asked.
        memo: Where answers are kept, under a digest of the question.
        clock: Monotonic seconds.
    """

    __slots__ = ("_clock", "_fleet", "_memo", "_num_asked", "_silent", "_turn")

    def __init__(
        self,
        fleet: Fleet,
        memo: TokenMemo,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._memo = memo
        self._clock = clock
        self._num_asked = 0
        self._turn = 0
        self._silent: dict[tuple[str, bool], float] = {}

    def __repr__(self) -> str:
        return f"<EngineTokens [{self._num_asked} asked]>"

    async def find(
        self, fields: ExactChat | ExactCompletion
    ) -> tuple["array[int]", ...]:
        """Return the tokens of each prompt of a body.

        Raises:
            NotExact: No engine answered, or too many are being asked.
        """
        model = fields.model if isinstance(fields.model, str) else None
        found = []
        for question in questions(fields, model):
            digest = blake2b(msgspec.json.encode(question), digest_size=16).hexdigest()
            known = self._memo.find(_OWNER, (digest,))[0]
            if known is None:
                _, known = await self.ask_any(model, question)
                self._memo.store(_OWNER, (digest,), (known,))
            found.append(known)
        return tuple(found)

    async def ask_any(
        self, model: str | None, question: Question
    ) -> tuple[Backend, "array[int]"]:
        """Return the answer of the first backend that has one.

        Raises:
            NotExact: There is none, or too many are being asked.
        """
        if self._num_asked >= MAX_ASKED:
            raise NotExact("too many prompts are being asked for")
        self._num_asked += 1
        try:
            for backend in self._willing(model, "messages" in question):
                try:
                    tokens = await self.ask(backend, question)
                except AdapterError:
                    continue
                if tokens is not None:
                    return backend, tokens
        finally:
            self._num_asked -= 1
        raise NotExact("no engine told the tokens")

    async def ask(self, backend: Backend, question: Question) -> "array[int] | None":
        """Ask one backend; None if it offers no way.

        Raises:
            AdapterError: It did not answer within a second, or refused.
        """
        endpoint = self._fleet.endpoint(backend)
        if endpoint is None:
            return None
        key = (backend.name, "messages" in question)
        try:
            async with asyncio.timeout(ASK_S):
                tokens = await backend.adapter.tokenize(endpoint, question)
        except (AdapterError, TimeoutError) as error:
            self._silent[key] = self._clock() + _AFTER_FAILURE_S
            if isinstance(error, AdapterError):
                raise
            raise AdapterError(f"{backend.name} told no tokens in {ASK_S} s") from error
        if tokens is None:
            self._silent[key] = self._clock() + _WITHOUT_PATH_S
        else:
            self._silent.pop(key, None)
        return tokens

    def _willing(self, model: str | None, is_chat: bool) -> Iterator[Backend]:
        try:
            backends = self._fleet.routable(model)
        except ClientError as error:
            raise NotExact("no backend serves the model") from error
        now = self._clock()
        self._turn += 1
        for at in range(len(backends)):
            backend = backends[(self._turn + at) % len(backends)]
            if self._silent.get((backend.name, is_chat), now) <= now:
                yield backend


def questions(
    fields: ExactChat | ExactCompletion, model: str | None
) -> Iterator[Question]:
    """Return what to ask for each prompt of a body, in the form of vLLM's API.

    Raises:
        NotExact: Too many prompts, or something that the question cannot express.
    """
    common: Question = {"add_special_tokens": fields.add_special_tokens}
    if model is not None:
        common["model"] = model
    if isinstance(fields, ExactCompletion):
        texts = fields.texts()
        if len(texts) > MAX_PROMPTS:
            raise NotExact("more prompts than an engine is asked for")
        return iter([{**common, "prompt": text} for text in texts])
    question = {
        **common,
        "messages": [_with_reasoning(message) for message in fields.messages],
        "add_generation_prompt": fields.add_generation_prompt,
        "continue_final_message": fields.continue_final_message,
    }
    _check_texts(fields.messages)
    if (tools := load(fields.tools)) is not None:
        question["tools"] = tools
    if variables := fields.variables():
        question["chat_template_kwargs"] = variables
    if fields.chat_template is not None:
        question["chat_template"] = fields.chat_template
    return iter([question])


def first_difference(ours: "array[int]", theirs: "array[int]") -> int | None:
    """Return the index of the first token that differs, None if none does."""
    if ours == theirs:
        return None
    shorter = min(len(ours), len(theirs))
    return next((at for at in range(shorter) if ours[at] != theirs[at]), shorter)


def _with_reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rename the older field, as vLLM does it for chats but not for questions."""
    if message.get("reasoning_content") is None:
        return message
    renamed = {k: v for k, v in message.items() if k != "reasoning_content"}
    if renamed.get("reasoning") is None:
        renamed["reasoning"] = message["reasoning_content"]
    return renamed


def _check_texts(messages: list[dict[str, Any]]) -> None:
    """Refuse media: the tokens of a picture say nothing of what it shows."""
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and not isinstance(part.get("text"), str):
                raise NotExact("a content part that is no text")
