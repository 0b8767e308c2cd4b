"""One backend under examination, with all that the checks have learned of it."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp

from warmroute.adapters.base import (
    Adapter,
    CacheCounters,
    Endpoint,
    EngineFacts,
    EventAddress,
    ModelCard,
)
from warmroute.adapters.openai import OpenAIAdapter
from warmroute.proxy.config import BackendConfig, ModelConfig, TimeoutsConfig
from warmroute.proxy.console.admin_client import AdminClient
from warmroute.proxy.doctor.finding import Finding
from warmroute.proxy.doctor.idle_connection import IdleConnection
from warmroute.proxy.doctor.prompt import Reply
from warmroute.proxy.fleet.target import Target, tls_context

if TYPE_CHECKING:
    from warmroute.proxy.doctor.ear import Ear, Heard


@dataclass(frozen=True, slots=True)
class Conditions:
    """Hold what is the same for all backends.

    Args:
        timeouts: The proxy's own.
        models: What is configured of the models.
        timeout_s: Bound of one answer of an engine.
        is_probing: Whether prompts may be sent.
        admin: Asks the running proxy, where one was named.
    """

    timeouts: TimeoutsConfig
    models: Sequence[ModelConfig]
    timeout_s: float
    is_probing: bool
    admin: AdminClient | None = None


@dataclass(slots=True)
class Patient:
    """Hold one backend and what was learned, each by the check that says so.

    Args:
        config: The backend's.
        conditions: What is the same for all.
        target: Where it is.
        tls: Context for https, or None.
        endpoint: Takes control calls.
        ear: Hears KV events; None where pyzmq is missing.
    """

    config: BackendConfig
    conditions: Conditions
    target: Target
    tls: ssl.SSLContext | None
    endpoint: Endpoint
    ear: "Ear | None"
    adapter: Adapter = field(default_factory=OpenAIAdapter)
    facts: EngineFacts = field(default_factory=EngineFacts)
    counters: CacheCounters | None = None
    cards: list[ModelCard] = field(default_factory=list)
    connection: IdleConnection | None = None
    replies: list[Reply] = field(default_factory=list)
    sources: list[EventAddress] = field(default_factory=list)
    heard: "Heard | None" = None
    findings: dict[str, Finding] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Patient {self.name}: {len(self.findings)} findings>"

    @property
    def name(self) -> str:
        """Name of the backend."""
        return self.config.name

    @property
    def model(self) -> str | None:
        """Name of a model to send prompts to; None leaves it to the engine."""
        if self.config.models:
            return self.config.models[0]
        bases = (card.id for card in self.cards if card.parent is None)
        return next(bases, None)

    @property
    def max_model_len(self) -> int | None:
        """Longest sequence of that model in tokens; None while unknown."""
        lengths = (card.max_model_len for card in self.cards if card.id == self.model)
        return next(lengths, None)

    @property
    def block_size(self) -> int | None:
        """Tokens a block: as the events say, else as the engine says."""
        return self.heard.event.block_size if self.heard else self.facts.block_size

    def is_good(self, check: str) -> bool:
        """Tell whether a check was made and was not broken."""
        finding = self.findings.get(check)
        return finding is not None and finding.is_good


def admit(
    config: BackendConfig,
    conditions: Conditions,
    session: aiohttp.ClientSession,
    ear: "Ear | None",
) -> Patient:
    """Prepare a backend for its examination; asks it nothing.

    Raises:
        ConfigError: A certificate file cannot be used.
    """
    target = Target.parse(config.url)
    tls = None
    if target.scheme == "https":
        ca = None if config.tls.ca is None else str(config.tls.ca)
        tls = tls_context(ca, config.tls.verify)
    endpoint = Endpoint(
        session, str(target), headers(config), conditions.timeout_s, tls
    )
    return Patient(config, conditions, target, tls, endpoint, ear)


def headers(config: BackendConfig) -> dict[str, str]:
    """Return what each call to a backend carries."""
    found = {"Accept-Encoding": "identity"}
    if config.api_key is not None:
        found["Authorization"] = f"Bearer {config.api_key.get_secret_value()}"
    return found
