"""Engines of which nothing is promised but OpenAI's API."""

from array import array
from collections.abc import Iterable, Mapping, Sequence

from warmroute.adapters.base import (
    CacheCounters,
    Endpoint,
    EngineFacts,
    EventAddress,
    Health,
    KVControl,
    Lack,
    ModelCard,
    Snapshot,
)
from warmroute.adapters.kv_client import NoKVControl
from warmroute.adapters.remedies import GENERAL
from warmroute.policies.errors import ProtocolMismatch

PROBE_PROMPT = "Hi"
ABSENT = (404, 405, 501)


class OpenAIAdapter:
    """Read any server with OpenAI's API; the base of more specific adapters."""

    name = "openai"
    remedies: Mapping[Lack, str] = {}
    """What to do about this engine; `GENERAL` holds for the rest."""

    async def probe(self, endpoint: Endpoint) -> Health:
        """Ask ``/health``; without one, any answer of ``/v1/models`` will do.

        A refusal for want of a key is a sign of life: clients may bring theirs.
        """
        answer = await endpoint.get("/health")
        if answer.status in ABSENT:
            answer = await endpoint.get("/v1/models")
        if 300 <= answer.status < 400 or answer.status >= 500:
            return Health(False, f"health probe answered HTTP {answer.status}")
        return Health(True)

    async def generate(self, endpoint: Endpoint, model: str | None) -> Health:
        """Ask ``/v1/completions`` for one token.

        A client error is a sign of life, too: not every model completes text.
        """
        body: dict[str, object] = {"prompt": PROBE_PROMPT, "max_tokens": 1}
        if model is not None:
            body["model"] = model
        answer = await endpoint.post("/v1/completions", body)
        if answer.status >= 500:
            return Health(False, f"generation probe answered HTTP {answer.status}")
        return Health(True)

    async def models(self, endpoint: Endpoint) -> list[ModelCard]:
        """Read ``/v1/models``; empty where there is no such path."""
        listing = await endpoint.get_object("/v1/models")
        if listing is None:
            return []
        cards = listing.get("data")
        if not isinstance(cards, list):
            raise ProtocolMismatch(
                f"{endpoint.url}/v1/models answered without a list under 'data'"
            )
        return [_card(endpoint, card) for card in cards]

    async def facts(
        self, endpoint: Endpoint, known: EngineFacts | None = None
    ) -> EngineFacts:
        """Know nothing: OpenAI's API tells nothing of caches and queues."""
        return EngineFacts()

    async def cache_counters(self, endpoint: Endpoint) -> CacheCounters | None:
        """Know nothing: OpenAI's API has no counters."""
        return None

    async def event_sources(self, endpoint: Endpoint) -> list[EventAddress]:
        """Know none: OpenAI's API has no KV events."""
        return []

    async def snapshot(self, endpoint: Endpoint) -> Snapshot | None:
        """Know nothing: OpenAI's API does not show the cache."""
        return None

    def kv_control(self, endpoint: Endpoint) -> KVControl:
        """Return none: a server of unknown kind is not asked for them."""
        return NoKVControl(endpoint)

    def remedy(self, lack: Lack, version: str | None) -> str:
        """Return the engine's own remedy, or one for any engine."""
        return self.remedies.get(lack) or GENERAL[lack]

    async def tokenize(
        self, endpoint: Endpoint, body: Mapping[str, object]
    ) -> "array[int] | None":
        """Offer no way: OpenAI's API does not show tokens."""
        return None

    async def recognises(self, endpoint: Endpoint, models: Sequence[ModelCard]) -> bool:
        """Recognise anything: this is the kind that is left."""
        return True

    def serves(self, model: str, models: Mapping[str, ModelCard]) -> bool:
        """Serve what is listed."""
        return model in models

    async def abort(self, endpoint: Endpoint, request_id: str) -> None:
        """Do nothing: a closed connection is all that OpenAI's API knows."""


def owners(models: Iterable[ModelCard]) -> set[str]:
    """Collect who the models say they are owned by."""
    return {card.owned_by for card in models if card.owned_by}


def _card(endpoint: Endpoint, raw: object) -> ModelCard:
    if not isinstance(raw, dict) or not isinstance(raw.get("id"), str):
        raise ProtocolMismatch(f"{endpoint.url}/v1/models lists a model without an id")
    return ModelCard(
        id=raw["id"],
        parent=_text(raw.get("parent")),
        max_model_len=_length(raw.get("max_model_len")),
        owned_by=_text(raw.get("owned_by")),
        raw=raw,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _length(value: object) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and value > 0 else None  # type: ignore[operator, return-value]
