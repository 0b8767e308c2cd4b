"""The contract between the proxy and what knows one kind of engine.

An adapter turns an engine's own endpoints into facts. It decides nothing, keeps
no state, and may be shared by all backends of its kind. A number that an engine
does not tell is ``None``: unknown, never zero.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from warmroute.adapters.endpoint import BackendIsSelf, BackendRefused, Endpoint
from warmroute.adapters.kv_control import KVControl, Snapshot
from warmroute.adapters.kv_events.address import EventAddress
from warmroute.adapters.remedies import Lack

__all__ = [
    "Adapter",
    "BackendIsSelf",
    "BackendRefused",
    "CacheCounters",
    "Endpoint",
    "EngineFacts",
    "EventAddress",
    "Health",
    "KVControl",
    "Lack",
    "ModelCard",
    "Snapshot",
]


@dataclass(frozen=True, slots=True)
class Health:
    """Say whether an engine takes requests, and if not, why."""

    ready: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Describe one model that an engine serves.

    Args:
        id: Name that a request puts into ``model``.
        parent: Base model's id if this is a LoRA, else None.
        max_model_len: Longest sequence in tokens, prompt and output together.
        owned_by: What the engine wrote there; most write their own name.
        raw: The engine's card as received, for the union at ``/v1/models``.
    """

    id: str
    parent: str | None
    max_model_len: int | None
    owned_by: str | None
    raw: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Hold what an engine tells about itself; None is unknown.

    Args:
        version: Release of the engine.
        block_size: Tokens in a block of the prefix cache.
        capacity_tokens: Tokens that the KV cache holds, over all ranks.
        kv_usage: Share of the KV cache in use, 0 to 1, mean over ranks.
        running: Requests in the running batch, over all ranks.
        waiting: Requests queued in the engine, over all ranks.
        queued_tokens: Uncached prompt tokens queued in the engine.
        boot_id: Opaque mark that differs after each start of the engine.
        reports_cached_tokens: Whether answers carry cached-token counts.
        dp_ranks: Data-parallel ranks behind the one address.
        prefix_caching: Whether the engine keeps prefixes at all.
    """

    version: str | None = None
    block_size: int | None = None
    capacity_tokens: int | None = None
    kv_usage: float | None = None
    running: int | None = None
    waiting: int | None = None
    queued_tokens: int | None = None
    boot_id: str | None = None
    reports_cached_tokens: bool | None = None
    dp_ranks: int | None = None
    prefix_caching: bool | None = None

    def without_load(self) -> "EngineFacts":
        """Return the facts that last, with all load unknown."""
        return replace(
            self, kv_usage=None, running=None, waiting=None, queued_tokens=None
        )


@dataclass(frozen=True, slots=True)
class CacheCounters:
    """Count prompt tokens since the engine's start, over all ranks.

    Args:
        queried: Tokens looked up in the caches.
        hit: Those of them that a cache had, of whatever tier.
    """

    queried: int
    hit: int


class Adapter(Protocol):
    """Read one kind of engine over HTTP.

    Every method that reads raises `BackendUnavailable` when there is no answer
    in time (`BackendRefused` when nobody listens) and `ProtocolMismatch` when
    the answer is not what this engine sends.
    """

    name: str

    async def probe(self, endpoint: Endpoint) -> Health:
        """Ask whether the engine takes requests."""
        ...

    async def generate(self, endpoint: Endpoint, model: str | None) -> Health:
        """Generate one token: proof against an engine that hangs politely."""
        ...

    async def models(self, endpoint: Endpoint) -> list[ModelCard]:
        """List the models; empty if the engine offers no list."""
        ...

    async def facts(
        self, endpoint: Endpoint, known: EngineFacts | None = None
    ) -> EngineFacts:
        """Read what the engine tells about itself.

        Args:
            endpoint: Where to ask.
            known: An earlier answer of the same incarnation. What cannot have
                changed may be taken from it; None asks for everything anew.
        """
        ...

    async def cache_counters(self, endpoint: Endpoint) -> CacheCounters | None:
        """Read how much of all prompts was cached; None if it is not told."""
        ...

    async def event_sources(self, endpoint: Endpoint) -> list[EventAddress]:
        """Tell where KV events are published, an address a rank.

        The addresses are those to use from here, as `resolve` returns them, in the
        order of the ranks; empty if the engine publishes none or does not say.
        """
        ...

    async def snapshot(self, endpoint: Endpoint) -> Snapshot | None:
        """List all resident blocks with their tokens; None where that is not offered.

        O(blocks) in the engine and on the wire: ask when it is needed, not often.
        """
        ...

    def kv_control(self, endpoint: Endpoint) -> KVControl:
        """Return the levers of the cache behind *endpoint*; asks nothing."""
        ...

    def remedy(self, lack: Lack, version: str | None) -> str:
        """Say what to do about something that the engine lacks.

        Args:
            lack: What is missing or wrong.
            version: The engine's release, where flags depend on it.
        """
        ...

    async def tokenize(
        self, endpoint: Endpoint, body: Mapping[str, object]
    ) -> "array[int] | None":
        """Ask which tokens a prompt becomes; None if the engine offers no way.

        Args:
            endpoint: Where to ask.
            body: As vLLM's ``/tokenize`` takes it: ``prompt``, or ``messages`` with
                what belongs to them.
        """
        ...

    async def recognises(self, endpoint: Endpoint, models: Sequence[ModelCard]) -> bool:
        """Tell whether the backend is an engine of this kind."""
        ...

    def serves(self, model: str, models: Mapping[str, ModelCard]) -> bool:
        """Tell whether an engine with these models takes this name."""
        ...

    async def abort(self, endpoint: Endpoint, request_id: str) -> None:
        """Stop a request whose connection is gone, where the engine can."""
        ...
