"""The output of one choice: tokens sampled, text cut, and why it ended."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from warmroute.adapters.embedded.engine.request import GenerationRequest
from warmroute.adapters.embedded.engine.sampler import F32, Sampler
from warmroute.adapters.embedded.engine.stop import StopMatcher
from warmroute.adapters.embedded.engine.stream import Delta, FinishReason


class TextStream(Protocol):
    """Turn token ids into text as they come, never with a broken character."""

    def push(self, token_id: int) -> str:
        """Return the text that is complete with this token."""
        ...

    def flush(self) -> str:
        """Return what is left: no more tokens will come."""
        ...


class _Ending(NamedTuple):
    text: str
    reason: FinishReason | None = None
    stop_reason: str | None = None


class Choice:
    """Sample one choice of a request, token by token.

    Args:
        request: What was asked.
        index: Which of the request's choices.
        max_tokens: Tokens after which it ends.
        eos_ids: End tokens of the model.
        text: Turns its tokens into text.
    """

    __slots__ = (
        "_eos_ids",
        "_request",
        "_sampler",
        "_stop",
        "_text",
        "finish_reason",
        "index",
        "max_tokens",
        "num_generated",
    )

    def __init__(
        self,
        request: GenerationRequest,
        index: int,
        max_tokens: int,
        eos_ids: tuple[int, ...],
        text: TextStream,
    ) -> None:
        self.index = index
        self.num_generated = 0
        self.finish_reason: FinishReason | None = None
        self._request = request
        self.max_tokens = max_tokens
        self._eos_ids = eos_ids
        self._text = text
        self._sampler = Sampler(request, index, eos_ids)
        self._stop = StopMatcher(request.stop)

    def __repr__(self) -> str:
        state = self.finish_reason or "open"
        return f"<Choice {self.index}: {self.num_generated} tokens, {state}>"

    def advance(self, logits: F32) -> Delta:
        """Sample the next token from its row of logits, ``[vocab]``."""
        token_id = self._sampler.sample(logits, self.num_generated)
        self.num_generated += 1
        ending = self._ending(token_id)
        self.finish_reason = ending.reason
        asked = self._request.logprobs is not None
        logprobs = (self._sampler.logprob(logits, token_id),) if asked else ()
        return Delta(self.index, [token_id], *ending, logprobs)

    def end(self, reason: FinishReason) -> Delta:
        """End the choice from outside, without a token."""
        self.finish_reason = reason
        return Delta(self.index, [], self._rest(""), reason)

    def _ending(self, token_id: int) -> _Ending:
        if token_id in self._eos_ids and not self._request.ignore_eos:
            return _Ending(self._rest(""), "stop")
        text = self._text.push(token_id)
        if self.num_generated > self._request.min_tokens:
            text = self._stop.push(text)
            if self._stop.found is not None:
                return _Ending(text, "stop", self._stop.found)
        if self.num_generated >= self.max_tokens:
            return _Ending(self._rest(text), "length")
        return _Ending(text)

    def _rest(self, text: str) -> str:
        # What is left of a torn character may not complete a stop string either.
        return text + self._stop.push(self._text.flush()) + self._stop.flush()
