"""What handlers share: the engine, its tokenizer, the model's names."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from warmroute.adapters.embedded.server.errors import BadField
from warmroute.adapters.embedded.server.port import EnginePort, TokenizerPort
from warmroute.policies.errors import ClientError, WarmrouteError

# The longest tokens of usual vocabularies are runs of spaces.
_MAX_TOKEN_CHARS = 128


@dataclass(frozen=True, slots=True)
class Serving:
    """Hold what is served.

    Args:
        engine: The engine, started.
        tokenizer: The model's own.
        names: What requests may call the model; the first one is shown.
        version: Release of warmroute.
        event_sources: What ``/kv_event_sources`` answers, by data-parallel rank.
        started_s: Unix time of the start.
    """

    engine: EnginePort
    tokenizer: TokenizerPort
    names: Sequence[str]
    version: str
    event_sources: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    started_s: int = field(default_factory=lambda: int(time.time()))

    @property
    def name(self) -> str:
        """The name that answers and metrics show."""
        return self.names[0]

    def check_model(self, model: str | None) -> None:
        """Refuse a name that nobody here answers to; none means the only model.

        Raises:
            ClientError: The model is not served.
        """
        if model is not None and model not in self.names:
            known = ", ".join(self.names)
            error = BadField(
                "model",
                f"{model[:200]!r} is not served (known: {known})",
                "model_not_found",
            )
            error.status = 404
            raise error

    def check_alive(self) -> None:
        """Refuse work for an engine that is dead.

        Raises:
            ClientError: The engine failed for good.
        """
        failure = self.engine.failure
        if failure is not None:
            raise ClientError(
                503, "engine_dead", f"the engine is dead: {failure}; restart it"
            )

    async def encode(self, text: str, *, add_special: bool) -> list[int]:
        """Return the token ids of *text*, computed off the event loop.

        Raises:
            BadField: It is so long that it cannot fit, whatever its tokens.
        """
        self._check_size("prompt", len(text))
        return await asyncio.to_thread(
            self.tokenizer.encode, text, add_special=add_special
        )

    async def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> list[int]:
        """Return the token ids of a chat, rendered off the event loop.

        Raises:
            BadField: The model's template refuses the messages, or they are so long
                that they cannot fit.
        """
        self._check_size("messages", sum(len(str(one)) for one in messages))
        try:
            return await asyncio.to_thread(
                self.tokenizer.encode_chat, messages, **options
            )
        except WarmrouteError as error:
            raise BadField("messages", str(error), "template_failed") from error

    def _check_size(self, param: str, num_chars: int) -> None:
        """Refuse what no tokenization makes fit, before it costs one."""
        most = self.engine.limits.max_model_len * _MAX_TOKEN_CHARS
        if num_chars > most:
            raise BadField(
                param,
                f"{num_chars} characters (allowed: {most} at most, for "
                f"{self.engine.limits.max_model_len} tokens); shorten it",
                "context_length_exceeded",
            )
