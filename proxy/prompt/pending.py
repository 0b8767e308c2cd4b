"""What the data port asks of exact prompts; the rest needs extras."""

from typing import Protocol

from warmroute.proxy.prompt.prompt import Prompt


class Pending(Protocol):
    """A prompt whose tokens are still being made."""

    async def finish(self) -> None:
        """Make the prompt exact where that works in time; raises nothing."""
        ...


class Exactness(Protocol):
    """What can make prompts exact."""

    def begin(self, prompt: Prompt, body: bytes) -> Pending | None:
        """Make *prompt* exact now, or return what has to be waited for.

        None means that it is as exact as it will be. Raises nothing.
        """
        ...

    def miscounted(self, prompt: Prompt, backend: str, num_tokens: int) -> None:
        """Learn that an engine counted other tokens in an exact prompt."""
        ...
