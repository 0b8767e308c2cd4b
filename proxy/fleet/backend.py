"""One backend: where it is, what it is, how it fares."""

import ssl
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from pydantic import SecretStr

from warmroute.adapters.base import Adapter, EngineFacts, ModelCard
from warmroute.adapters.kv_events.address import EventAddress
from warmroute.policies.errors import ConfigError
from warmroute.policies.routing.base import Candidate
from warmroute.policies.routing.load import FleetLoad
from warmroute.proxy.config.backend import BackendConfig
from warmroute.proxy.config.sections import HealthConfig
from warmroute.proxy.fleet.breaker import Breaker
from warmroute.proxy.fleet.ranks import Load, find_ranks, seat_names
from warmroute.proxy.fleet.target import Target, tls_context
from warmroute.proxy.fleet.vitals import Vitals

ASSUMED_PROMPT_TOKENS = 1024.0
_FLEETING: dict[str, object] = {"created": 0, "permission": []}


class Backend:
    """Hold all that the process knows of one engine endpoint.

    The fleet owns it and is the only one to change it. *candidates* and *breaker*
    belong to one incarnation: a restart brings new ones, so what was reserved on
    the old process harms nobody.

    Attributes:
        ranks: Numbers of its data-parallel ranks, which are candidates each; empty
            when it has one, or none can be told from another.
        candidates: One a rank, in their order; else the backend itself.
    """

    __slots__ = (
        "adapter",
        "auth_header",
        "breaker",
        "candidates",
        "config",
        "door_key",
        "event_sources",
        "facts",
        "host",
        "host_header",
        "incarnation",
        "is_detected",
        "is_draining",
        "is_unsure",
        "mean_prompt_tokens",
        "models",
        "name",
        "path_prefix",
        "port",
        "ranks",
        "ssl",
        "url",
        "vitals",
    )

    def __init__(
        self,
        config: BackendConfig,
        health: HealthConfig,
        adapter: Adapter,
        load: FleetLoad,
    ) -> None:
        target = Target.parse(config.url)
        self.config = config
        self.name = config.name
        self.url = str(target)
        self.host = target.host
        self.port = target.port
        self.host_header = target.authority.encode()
        self.path_prefix = target.path_prefix
        self.ssl = _context(target, config)
        self.auth_header = _auth_header(config)
        self.door_key = _bearer(config.name, "kv_token", config.kv_token)
        self.adapter = adapter
        self.is_detected = config.engine != "auto"
        self.breaker = _breaker(health)
        self.event_sources: list[EventAddress] = []
        self.vitals = Vitals(health.failures, health.failures * health.interval_s)
        self.incarnation = 1
        self.is_draining = False
        self.is_unsure = True
        self.facts = EngineFacts()
        self.models: Mapping[str, ModelCard] = _configured(config)
        self.mean_prompt_tokens = ASSUMED_PROMPT_TOKENS
        self.ranks: list[int] = []
        self.candidates = [load.add(self.name, self.speed_class)]

    def __repr__(self) -> str:
        return (
            f"<Backend {self.name} {self.url} [{self.engine}, {self.state}, "
            f"incarnation {self.incarnation}, breaker {self.breaker.state}]>"
        )

    @property
    def state(self) -> Literal["starting", "up", "down", "draining"]:
        """Show whether it takes new requests, and if not, why."""
        return "draining" if self.is_draining else self.vitals.life

    @property
    def engine(self) -> str:
        """Name the kind of engine, as configured or as detected so far."""
        return self.adapter.name

    @property
    def block_size(self) -> int | None:
        """Give the tokens in a cache block; None while unknown."""
        return self.facts.block_size

    @property
    def capacity_tokens(self) -> int | None:
        """Give the tokens that its KV cache holds; None while unknown."""
        return self.facts.capacity_tokens

    @property
    def speed_class(self) -> str:
        """Name the backends whose speed is learned together.

        ``model|engine|hardware``, of base models only: a LoRA that comes or goes
        changes nothing.
        """
        bases = sorted(id for id, card in self.models.items() if card.parent is None)
        return f"{','.join(bases)}|{self.engine}|{self.config.speed_class or ''}"

    def begin_incarnation(self, health: HealthConfig, load: FleetLoad) -> None:
        """Start anew with a new process: nothing learned of the old one holds."""
        self.incarnation += 1
        names = seat_names(self.name, self.ranks)
        self.candidates = [load.add(name, self.speed_class) for name in names]
        self.breaker = _breaker(health)
        self.facts = EngineFacts()

    def configure_health(self, health: HealthConfig) -> None:
        """Take over how it is judged; what was found out stays."""
        self.breaker.configure(health.breaker.failures, health.breaker.open_s)
        self.vitals.configure(health.failures, health.failures * health.interval_s)

    @property
    def candidate(self) -> Candidate:
        """Return the only candidate, or that of the first rank."""
        return self.candidates[0]

    @property
    def kv_usage(self) -> float | None:
        """Give the share of its KV cache that is in use; None while unknown."""
        return self.facts.kv_usage

    @property
    def load(self) -> Load:
        """Count what runs on all ranks together."""
        return Load(self.candidates)

    @property
    def learned(self) -> tuple[float | None, float | None]:
        """Prefill rate in tokens/s and inter-token latency in s, where learned.

        Both have assumed values before the first sample; the first one of a stream
        replaces the scale of 1 altogether. Rates add up over ranks.
        """
        rates = [one.rate for one in self.candidates if one.busy]
        learned = self.candidate.speed.line.scale != 1.0
        return sum(rates) or None, self.candidate.itl_s if learned else None

    def serves(self, model: str | None) -> bool:
        """Tell whether it may take the model: yes while its models are unknown."""
        if model is None or not self.models:
            return True
        return self.adapter.serves(model, self.models)

    def learn_engine(self, adapter: Adapter, is_detected: bool) -> bool:
        """Take over the adapter that recognised it; tell whether it changed."""
        self.is_detected = is_detected
        if adapter.name == self.adapter.name:
            return False
        self.adapter = adapter
        return True

    def learn_models(self, cards: Iterable[ModelCard]) -> bool:
        """Take over the engine's list of models; tell whether it changed.

        A configured list stands: cards only add what the engine says of it.
        """
        found = {card.id: card for card in cards}
        if self.config.models:
            found = {id: found.get(id) or _bare(id) for id in self.config.models}
        if _lasting(found) == _lasting(self.models):
            return False
        self.models = found
        return True

    def learn_events(self, sources: list[EventAddress] | None) -> bool:
        """Take over where its KV events are published; tell whether it changed."""
        if sources is None or sources == self.event_sources:
            return False
        self.event_sources = sources
        return True

    def learn_ranks(self, load: FleetLoad) -> bool:
        """Take in a candidate a rank, once those are known; tell of a change."""
        ranks = find_ranks(self.event_sources, self.facts.dp_ranks)
        if ranks == self.ranks:
            return False
        for one in self.candidates[1:]:
            load.remove(one.name)
        names = seat_names(self.name, ranks)
        more = [load.add(name, self.speed_class) for name in names[1:]]
        self.ranks, self.candidates = ranks, [self.candidate, *more]
        return True

    def learn_facts(self, facts: EngineFacts | None) -> bool:
        """Take over the engine's facts; tell whether the cache's shape changed.

        The shape stays what it was if this answer leaves it out; the load does
        not: what is not told is unknown, and old load is no load.
        """
        before = self.facts
        now = before.without_load() if facts is None else facts
        self.facts = replace(
            now,
            block_size=now.block_size or before.block_size,
            capacity_tokens=now.capacity_tokens or before.capacity_tokens,
            dp_ranks=now.dp_ranks or before.dp_ranks,
        )
        queued_tokens = self._queued_tokens(now) // len(self.candidates)
        for candidate in self.candidates:
            candidate.kv_usage = now.kv_usage
            candidate.queued_tokens = queued_tokens + candidate.held_tokens
        return (before.block_size, before.capacity_tokens) != (
            self.block_size,
            self.capacity_tokens,
        )

    def _queued_tokens(self, facts: EngineFacts) -> int:
        """Estimate the prompt tokens that others have queued in the engine.

        An engine that tells tokens tells ours too, so ours go off. One that
        tells requests only gets our mean prompt for each that is not ours.
        """
        load = self.load
        if load.requests:
            self.mean_prompt_tokens = load.context_tokens / load.requests
        if facts.queued_tokens is not None:
            return max(0, facts.queued_tokens - load.prefill_tokens)
        ours = load.requests - load.decodes
        others = max(0, (facts.waiting or 0) - ours)
        return round(others * self.mean_prompt_tokens)


def _breaker(health: HealthConfig) -> Breaker:
    return Breaker(health.breaker.failures, health.breaker.open_s)


def _context(target: Target, config: BackendConfig) -> ssl.SSLContext | None:
    if target.scheme != "https":
        return None
    ca = None if config.tls.ca is None else str(config.tls.ca)
    return tls_context(ca, config.tls.verify)


def _auth_header(config: BackendConfig) -> tuple[bytes, bytes] | None:
    bearer = _bearer(config.name, "api_key", config.api_key)
    return None if bearer is None else (b"authorization", bearer.encode())


def _bearer(name: str, field: str, secret: SecretStr | None) -> str | None:
    if secret is None:
        return None
    key = secret.get_secret_value()
    if not key.isascii() or not key.isprintable():
        raise ConfigError(
            f"backend {name}: {field} holds a character that no header can"
            " carry; check for a line end in the variable it comes from"
        )
    return f"Bearer {key}"


def _lasting(cards: Mapping[str, ModelCard]) -> dict[str, ModelCard]:
    """Return cards without what vLLM and SGLang make up anew for each answer."""
    return {
        name: replace(card, raw={**card.raw, **_FLEETING})
        for name, card in cards.items()
    }


def _bare(model: str) -> ModelCard:
    raw = {"id": model, "object": "model", "created": 0, "owned_by": "warmroute"}
    return ModelCard(model, None, None, "warmroute", raw)


def _configured(config: BackendConfig) -> dict[str, ModelCard]:
    return {model: _bare(model) for model in config.models or ()}
