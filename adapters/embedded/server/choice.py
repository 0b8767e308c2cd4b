"""One choice of an answer, as far as it has been generated."""

from dataclasses import dataclass, field

from warmroute.adapters.embedded.engine.stream import Delta, TokenLogprob


@dataclass(slots=True)
class Choice:
    """Add up the deltas of one choice.

    Args:
        index: Its place in the answer, counted over all prompts.
        prompt_ids: The prompt that it continues.
        is_begun: Whether a stream has told of it.
    """

    index: int
    prompt_ids: list[int]
    is_begun: bool = False
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    @property
    def text(self) -> str:
        """Return all of its text."""
        return "".join(self.texts)

    @property
    def length(self) -> int:
        """Return the characters of its text."""
        return sum(map(len, self.texts))

    def add(self, delta: Delta) -> None:
        """Append what *delta* brings."""
        self.texts.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason


def fresh_choices(prompts: list[list[int]], n: int) -> list[Choice]:
    """Return *n* empty choices a prompt, prompt by prompt."""
    return [
        Choice(at * n + one, prompt_ids)
        for at, prompt_ids in enumerate(prompts)
        for one in range(n)
    ]
