"""The backends of the configuration: where engines are and how to talk to them."""

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from warmroute.adapters.kv_events.address import fault_of
from warmroute.proxy.config.fields import (
    BackendUrl,
    FilePath,
    Name,
    Secret,
    Section,
    off_word,
)


class BackendTLSConfig(Section):
    """Talk to an https backend."""

    ca: FilePath | None = Field(
        default=None,
        description="PEM file with the certificates to trust; left out, the system's.",
    )
    verify: bool = Field(
        default=True, description="Check the backend's certificate and host name."
    )


def _check_zmq_address(text: str) -> str:
    fault = fault_of(text)
    if fault is not None:
        raise ValueError(fault)
    return text


ZMQAddress = Annotated[str, AfterValidator(_check_zmq_address)]


class KVEventsConfig(Section):
    """Say where an engine publishes its KV events."""

    endpoint: ZMQAddress = Field(
        description="ZMQ address of the publisher, such as `tcp://10.0.0.7:5557`.",
    )
    replay: ZMQAddress | None = Field(
        default=None,
        description="ZMQ address that replays missed events.",
    )
    topic: str = Field(default="", description="Topic to subscribe to, exactly.")
    bind: bool = Field(
        default=False, description="Bind the address instead of connecting to it."
    )

    @model_validator(mode="after")
    def _can_connect(self) -> "KVEventsConfig":
        for address in (None if self.bind else self.endpoint, self.replay):
            if address is not None and address.startswith("tcp://*"):
                raise ValueError(
                    f"nobody can connect to '{address}' (allowed: the engine's host in "
                    "place of *; an endpoint that the engine connects to itself has "
                    "`bind: true`)"
                )
        return self


_WORD, _MAPPING = "<word>", "<mapping>"
KV_EVENTS_FORMS = (_WORD, _MAPPING)
"""What pydantic puts into the path of a problem, after ``kv_events``."""


def _kv_events_form(value: Any) -> str:
    return _MAPPING if isinstance(value, dict | KVEventsConfig) else _WORD


def _kv_events_word(value: Any) -> Any:
    if isinstance(value, bool):
        return "auto" if value else "off"
    if isinstance(value, str) and value.lower() in ("on", "true", "yes"):
        return "auto"
    return off_word(value)


KVEvents = Annotated[
    Annotated[Literal["auto", "off"], Tag(_WORD)]
    | Annotated[KVEventsConfig, Tag(_MAPPING)],
    Discriminator(_kv_events_form),
    BeforeValidator(_kv_events_word),
]


class BackendConfig(Section):
    """Describe one engine endpoint."""

    short_form = "url"

    name: Name = Field(
        default="",
        description="Name in metrics, logs and the admin API, unique; left out, the "
        "URL without its scheme.",
    )
    url: BackendUrl = Field(
        description="Base URL of the engine, without `/v1`; a path prefix is kept."
    )
    engine: str = Field(
        default="auto",
        description="Adapter for the engine's software; `auto` asks the engine.",
    )
    kv_events: KVEvents = Field(
        default="auto",
        description="Follow the engine's KV events: `auto` asks the engine where they "
        "are published, `off`, or an address.",
    )
    api_key: Secret = Field(
        default=None,
        description="Bearer token for the engine; it takes the place of the client's "
        "own, and probes carry it.",
    )
    kv_token: Secret = Field(
        default=None,
        description="Bearer token for the engine's `/warmroute/kv`; left out, the "
        "api_key goes there, too.",
    )
    tls: BackendTLSConfig = Field(
        default_factory=BackendTLSConfig, description="How an https URL is verified."
    )
    models: list[Name] | None = Field(
        default=None,
        min_length=1,
        description="Models to route here; left out, those that the engine lists.",
    )
    speed_class: Name | None = Field(
        default=None,
        alias="class",
        description="Hardware class, such as `h100`: backends of one class share what "
        "is learned about their speed.",
    )

    @classmethod
    def fill(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Name a backend after its URL where no name is given."""
        url = data.get("url")
        return {"name": name_of_url(url), **data} if isinstance(url, str) else data


def name_of_url(url: str) -> str:
    """Return the name that a backend has by its URL: host, port and path."""
    text = url.split("://", 1)[-1].rpartition("@")[2].rstrip("/")
    return re.sub(r"[^!-~]", "", text)[:200] or "backend"
