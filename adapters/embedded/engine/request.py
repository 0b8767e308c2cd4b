"""What a client asks of the engine, and why the engine may refuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from warmroute.policies.errors import ClientError

if TYPE_CHECKING:
    from warmroute.adapters.embedded.budget.options import BudgetOptions

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_TEMPERATURE = 100.0


class EngineRefused(ClientError):
    """The engine does not take this request; nothing of it was kept.

    Args:
        code: Stable slug, such as ``context_length_exceeded``.
        message: What was wrong, the value, what is allowed, and the remedy.
        param: Field of the request that is to blame, None if there is no one.
        status: HTTP status of the answer.
    """

    def __init__(
        self, code: str, message: str, param: str | None = None, status: int = 400
    ) -> None:
        super().__init__(status, code, message)
        self.param = param


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Ask for ``n`` continuations of one prompt.

    Args:
        request_id: Name in logs and observers; need not be unique.
        prompt_ids: Token ids of the prompt, at least one.
        max_tokens: Most tokens to generate a choice; None is as many as fit.
        temperature: 0 is greedy.
        top_p: Smallest set of tokens with this share of the probability.
        seed: Makes the choices repeatable; None is fresh entropy.
        stop: Strings at which a choice ends; they are cut from its text.
        n: Choices, sharing the blocks of the prompt.
        priority: Lower goes first, as in vLLM.
        cache_salt: Separates the prefix cache of those who know it.
        ignore_eos: Generate past the model's end tokens.
        logprobs: Most likely tokens to report for each token; None reports none,
            0 the chosen token alone.
        min_tokens: Neither an end token nor a stop string ends a choice before.
        budget: Token budget after the prefill; None takes the engine's default.
        turn: Turn of the conversation, from 1; block eviction may go by it.
    """

    request_id: str
    prompt_ids: list[int]
    max_tokens: int | None = 16
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    priority: int = 0
    cache_salt: str | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    min_tokens: int = 0
    budget: BudgetOptions | None = None
    turn: int = 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Hold what an engine allows a request.

    Args:
        max_model_len: Tokens of prompt and output together.
        max_num_seqs: Sequences that run at the same time.
        vocab_size: Token ids are below this.
    """

    max_model_len: int
    max_num_seqs: int
    vocab_size: int

    def check(self, request: GenerationRequest) -> None:
        """Refuse what can never be served; O(prompt).

        Raises:
            EngineRefused: A field is out of range, or the sequence is too long.
        """
        self._check_prompt(request)
        self._check_length(request)
        most_choices = min(MAX_CHOICES, self.max_num_seqs)
        _within("n", request.n, 1, most_choices)
        _within("temperature", request.temperature, 0, MAX_TEMPERATURE)
        _within("top_p", request.top_p, 0, 1)
        if request.top_p == 0:
            raise _out_of_range("top_p", 0, "above 0, up to 1")
        _within("logprobs", request.logprobs or 0, 0, MAX_LOGPROBS)
        _within("number of stop strings", len(request.stop), 0, MAX_STOPS, "stop")
        if "" in request.stop:
            raise _out_of_range("stop", "''", "strings of one character or more")

    def longest_output(self, request: GenerationRequest) -> int:
        """Return how many tokens a choice of a checked *request* may get."""
        room = self.max_model_len - len(request.prompt_ids)
        return room if request.max_tokens is None else request.max_tokens

    def _check_prompt(self, request: GenerationRequest) -> None:
        if not request.prompt_ids:
            raise EngineRefused(
                "empty_prompt", "the prompt has no tokens; send one or more", "prompt"
            )
        worst = max(request.prompt_ids)
        if min(request.prompt_ids) < 0 or worst >= self.vocab_size:
            wrong = worst if worst >= self.vocab_size else min(request.prompt_ids)
            raise EngineRefused(
                "token_out_of_vocabulary",
                f"prompt has the token id {wrong} (allowed: 0 to "
                f"{self.vocab_size - 1}); encode it with this model's tokenizer",
                "prompt",
            )

    def _check_length(self, request: GenerationRequest) -> None:
        prompt, limit = len(request.prompt_ids), self.max_model_len
        if prompt >= limit:
            raise EngineRefused(
                "context_length_exceeded",
                f"the prompt has {prompt} tokens (allowed: {limit - 1}, the context "
                f"of {limit} less one to generate); shorten it, or start the engine "
                f"with more blocks or a larger max_model_len",
                "prompt",
            )
        if request.max_tokens is not None:
            _within("max_tokens", request.max_tokens, 1, None)
            if prompt + request.max_tokens > limit:
                raise EngineRefused(
                    "context_length_exceeded",
                    f"max_tokens is {request.max_tokens} and the prompt has {prompt} "
                    f"tokens (allowed: {limit} together); lower max_tokens to "
                    f"{limit - prompt}, or leave it out",
                    "max_tokens",
                )
        most = limit - prompt if request.max_tokens is None else request.max_tokens
        _within("min_tokens", request.min_tokens, 0, most)


def _within(
    name: str,
    value: float,
    least: float,
    most: float | None,
    param: str | None = None,
) -> None:
    # Written so that a NaN, which compares false to everything, is refused too.
    if not (least <= value and (most is None or value <= most)):
        allowed = f"{least} or more" if most is None else f"{least} to {most}"
        raise _out_of_range(name, value, allowed, param)


def _out_of_range(
    name: str, value: object, allowed: str, param: str | None = None
) -> EngineRefused:
    return EngineRefused(
        "invalid_parameter", f"{name} is {value} (allowed: {allowed})", param or name
    )
