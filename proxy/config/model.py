"""The whole configuration: what may stand in the file, with its defaults."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationInfo,
)

from warmroute.proxy.config.address import Address
from warmroute.proxy.config.backend import BackendConfig
from warmroute.proxy.config.fields import (
    ListenAddress,
    Name,
    OptionalAddress,
    Secret,
    Section,
    off_none,
    resolve,
)
from warmroute.proxy.config.policy import PolicyConfig
from warmroute.proxy.config.records import RecordsConfig
from warmroute.proxy.config.sections import (
    ConductorConfig,
    DecisionsConfig,
    DrainConfig,
    HeadersConfig,
    HealthConfig,
    IndexConfig,
    LimitsConfig,
    LogConfig,
    ReloadConfig,
    RetryConfig,
    TimeoutsConfig,
    TLSConfig,
    TruthConfig,
)
from warmroute.proxy.config.tokenizers import WORDS
from warmroute.proxy.config.tracing import TracingConfig

if TYPE_CHECKING:
    from warmroute.proxy.config.source import ConfigSource

DEFAULT_LISTEN = Address("127.0.0.1", 8080)
DEFAULT_ADMIN = Address("127.0.0.1", 9090)


def _read_tokenizer(value: Any) -> Any:
    return "none" if value is False else value


def _resolve_tokenizer(value: str, info: ValidationInfo) -> str:
    if value in WORDS:
        return value
    return str(resolve(value, (info.context or {}).get("directory", Path())))


class ModelConfig(Section):
    """Describe a model that the backends serve."""

    short_form = "name"

    name: Name = Field(description="Name that requests put into `model`.")
    tokenizer: Annotated[
        str, BeforeValidator(_read_tokenizer), AfterValidator(_resolve_tokenizer)
    ] = Field(
        default="none",
        min_length=1,
        description="A directory with `tokenizer.json` and the chat template (or that "
        "file, or a GGUF file), relative to this file: prompts are tokenized as the "
        "engine does it; or `engine` to ask the engine each time; or `none` for "
        "estimates. Needs the extra `tokenize` (of a GGUF file, `embedded`). Prompts "
        "of token ids are exact in each case.",
    )


class Config(Section):
    """Configure warmroute. A list of backend URLs alone is valid, too."""

    _source: "ConfigSource | None" = PrivateAttr(default=None)

    listen: ListenAddress = Field(
        default=DEFAULT_LISTEN,
        description="Address of the data port: `host:port`, `:port` for every "
        "interface, or `[ipv6]:port`. Port 0 takes a free one.",
    )
    admin: OptionalAddress = Field(
        default=DEFAULT_ADMIN,
        description="Address of the admin port: probes, metrics, and the JSON API of "
        "state, decisions and backends; or `off`. Beyond loopback it demands "
        "`admin_token`.",
    )
    admin_token: Secret = Field(
        default=None,
        description="Bearer token that the admin port demands. Best kept out of the "
        "file: set the variable `WARMROUTE_ADMIN_TOKEN`.",
    )
    tls: Annotated[TLSConfig | None, BeforeValidator(off_none)] = Field(
        default=None, description="Serve the data port over TLS; left out, plain HTTP."
    )
    policy: PolicyConfig = Field(
        default_factory=PolicyConfig,
        description="How a backend is chosen: a name, or a mapping of `name` and the "
        "policy's own options.",
    )
    models: list[ModelConfig] = Field(
        default_factory=list,
        description="What is known of the models; those not named here work, too.",
    )
    backends: list[BackendConfig] = Field(
        min_length=1,
        description="The engines to route to: a list of URLs, or of mappings.",
    )
    index: IndexConfig = Field(
        default_factory=IndexConfig, description="Bounds of the prefix index."
    )
    limits: LimitsConfig = Field(
        default_factory=LimitsConfig, description="Bounds of what a client may send."
    )
    timeouts: TimeoutsConfig = Field(
        default_factory=TimeoutsConfig, description="Bounds of each phase of a request."
    )
    health: HealthConfig = Field(
        default_factory=HealthConfig, description="How backends are probed."
    )
    retry: RetryConfig = Field(
        default_factory=RetryConfig, description="What happens when a backend fails."
    )
    headers: HeadersConfig = Field(
        default_factory=HeadersConfig, description="Which headers are held back."
    )
    drain: DrainConfig = Field(
        default_factory=DrainConfig, description="How the process shuts down."
    )
    truth: TruthConfig = Field(
        default_factory=TruthConfig, description="How predictions are verified."
    )
    decisions: DecisionsConfig = Field(
        default_factory=DecisionsConfig, description="How many decisions are kept."
    )
    records: Annotated[RecordsConfig | None, BeforeValidator(off_none)] = Field(
        default=None, description="Where requests are recorded; left out, nowhere."
    )
    tracing: Annotated[TracingConfig | None, BeforeValidator(off_none)] = Field(
        default=None, description="Where spans are sent; left out, nowhere."
    )
    conductor: ConductorConfig = Field(
        default_factory=ConductorConfig,
        description="Whether and how much the engines' caches are steered.",
    )
    log: LogConfig = Field(default_factory=LogConfig, description="What is logged.")
    reload: ReloadConfig = Field(
        default_factory=ReloadConfig, description="When the file is read again."
    )

    def modified(self) -> tuple[int, int] | None:
        """Return a mark that differs once the file has changed; None without one.

        It follows symlinks, as a mounted ConfigMap is swapped by one.
        """
        return self._source.modified() if self._source else None
