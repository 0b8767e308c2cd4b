"""What the server needs of an engine and of a tokenizer, no more."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from warmroute.adapters.embedded.engine.request import GenerationRequest, Limits
from warmroute.adapters.embedded.engine.stats import EngineStats
from warmroute.adapters.embedded.engine.stream import RequestStream


class TokenBytesPort(Protocol):
    """The bytes of every token."""

    def of(self, token_id: int) -> bytes:
        """Return the bytes of one token."""
        ...


class TokenizerPort(Protocol):
    """Text to token ids and back; safe to call on any thread."""

    def encode(self, text: str, add_special: bool = ...) -> list[int]:
        """Return the token ids of *text*."""
        ...

    @property
    def token_bytes(self) -> TokenBytesPort:
        """What each token stands for."""
        ...

    def decode(self, ids: Sequence[int], skip_special: bool = ...) -> str:
        """Return the text of *ids*."""
        ...

    def token(self, token_id: int) -> str:
        """Return one token as text; a part of a character as U+FFFD."""
        ...

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> list[int]:
        """Render a chat by the model's template; return its token ids."""
        ...


class EnginePort(Protocol):
    """An engine that runs."""

    @property
    def limits(self) -> Limits:
        """What it allows a request."""
        ...

    @property
    def failure(self) -> str | None:
        """Why it is dead; None while it lives."""
        ...

    def submit(self, request: GenerationRequest) -> RequestStream:
        """Queue a request; raises `EngineRefused` when it can never be served."""
        ...

    def stats(self) -> EngineStats:
        """Return the counters as of the last step."""
        ...
