"""The sections of the configuration that stand for themselves."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from warmroute.proxy.config.fields import (
    ByteCount,
    Count,
    FilePath,
    HeaderPattern,
    Number,
    Seconds,
    SecondsOrZero,
    Section,
    off_word,
)


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


MAX_BYTES = 2**50


class IndexConfig(Section):
    """Bound the view of what the backends' caches hold."""

    max_bytes: ByteCount = Field(
        default=268_435_456,
        ge=65_536,
        le=MAX_BYTES,
        description="Memory of the prefix index, over all backends. Full, it drops "
        "the least recently useful blocks.",
    )


class LimitsConfig(Section):
    """Bound what one client may send, and all of them together."""

    head_bytes: ByteCount = Field(
        default=65_536,
        ge=1024,
        le=1_048_576,
        description="Request line and headers together; more is answered 431.",
    )
    headers: Annotated[int, Number] = Field(
        default=100, ge=1, le=10_000, description="Headers of a request; more are 431."
    )
    body_bytes: ByteCount = Field(
        default=67_108_864,
        ge=1024,
        le=MAX_BYTES,
        description="Body of a request; more is answered 413.",
    )
    buffered_bytes: ByteCount = Field(
        default=1_073_741_824,
        ge=65_536,
        le=MAX_BYTES,
        description="Request bodies that are being read or kept, over all clients; a "
        "request beyond that is answered 503.",
    )
    connections: Count = Field(
        default=8192, description="Open client connections; more are closed at once."
    )


class TimeoutsConfig(Section):
    """Bound each phase of a request; the whole of it has no limit."""

    header_s: Seconds = Field(
        default=10, description="For a client to send a request's headers."
    )
    body_s: Seconds = Field(
        default=30, description="Between two pieces of a request's body."
    )
    keep_alive_s: Seconds = Field(
        default=75, description="An idle client connection stays open so long."
    )
    connect_s: Seconds = Field(
        default=5, description="For a connection to a backend to open."
    )
    first_byte_s: Seconds = Field(
        default=600, description="For a backend's answer to begin."
    )
    idle_s: Seconds = Field(
        default=300, description="Between two pieces of a backend's answer."
    )
    pool_idle_s: Seconds = Field(
        default=2,
        description="An idle connection to a backend is kept so long. Keep it below "
        "the engine's own keep-alive; uvicorn's is 5 s.",
    )


class BreakerConfig(Section):
    """Take a backend out of rotation when requests to it fail."""

    failures: Count = Field(
        default=5, description="Failed requests in a row that open the breaker."
    )
    open_s: Seconds = Field(
        default=5, description="Time until one request may try the backend again."
    )


class HealthConfig(Section):
    """Probe the backends."""

    interval_s: Seconds = Field(default=5, description="Time between two probes.")
    timeout_s: Seconds = Field(default=3, description="For a probe to be answered.")
    failures: Count = Field(
        default=3, description="Failed probes in a row that take a backend down."
    )
    breaker: BreakerConfig = Field(
        default_factory=BreakerConfig, description="What failed requests do."
    )
    generate: bool = Field(
        default=False,
        description="Probe with a generated token, where the engine can: finds hung "
        "engines that still answer `/health`, at the price of a little work.",
    )


class DrainConfig(Section):
    """Shut down without failing requests."""

    delay_s: SecondsOrZero = Field(
        default=5,
        description="After SIGTERM, go on accepting so long with `/readyz` at 503, "
        "until load balancers have noticed.",
    )
    timeout_s: SecondsOrZero = Field(
        default=120, description="Then let running requests finish for so long."
    )


class TLSConfig(Section):
    """Serve the data port over TLS."""

    certificate: FilePath = Field(
        description="PEM file with the certificate and its chain."
    )
    key: FilePath = Field(description="PEM file with its private key, unencrypted.")


class TruthConfig(Section):
    """Compare predicted cache hits with what the engines report."""

    usage: Annotated[Literal["observe", "inject", "off"], BeforeValidator(off_word)] = (
        Field(
            default="observe",
            description="`observe` reads usage where the client asked for it; `inject` "
            "asks for it on every stream and takes the extra chunk out again; `off` "
            "does neither.",
        )
    )


class LogConfig(Section):
    """Write logs to standard output."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)
    ] = Field(default="info", description="The least severe level that is written.")
    format: Annotated[Literal["auto", "json", "text"], BeforeValidator(_lower)] = Field(
        default="auto", description="`auto` is text on a terminal and JSON elsewhere."
    )


class HeadersConfig(Section):
    """Guard the headers that mean something to an engine."""

    strip: list[HeaderPattern] = Field(
        default=["x-data-parallel-rank", "x-override-*", "x-vllm-priority"],
        description="Request headers that clients may not pass on to engines; a "
        "trailing `*` stands for any ending. Those that a request needs are refused: "
        "`host`, `connection`, `content-length`, `transfer-encoding`, `content-type`; "
        "and `authorization`, whose place a backend's `api_key` takes.",
    )


class DecisionsConfig(Section):
    """Keep records of past routing decisions."""

    records: Count = Field(
        default=10_000, description="Records that are kept for `/api/decisions`."
    )
    max_bytes: ByteCount = Field(
        default=67_108_864,
        ge=65_536,
        le=MAX_BYTES,
        description="Memory that they may take together.",
    )


class RetryConfig(Section):
    """Try another backend when one fails before its first byte."""

    attempts: Annotated[int, Number] = Field(
        default=1, ge=0, le=5, description="Further backends to try; 0 never retries."
    )


class ConductorConfig(Section):
    """Have engines keep, give up, fetch and copy prefixes, as traffic shows."""

    enabled: bool = Field(
        default=False,
        description="Whether it acts. It does so only on backends whose KV events are "
        "followed and which offer KV control, and for prompts whose token ids are "
        "known.",
    )
    actions_per_minute: Annotated[int, Number] = Field(
        default=240,
        ge=1,
        le=60_000,
        description="Actions over all backends; what goes beyond is left out.",
    )
    retained_share: Annotated[float, Number] = Field(
        default=0.3,
        ge=0,
        le=0.5,
        description="Share of a backend's cache that it may retain; 0 never retains.",
    )
    min_tokens: Count = Field(
        default=64, description="Shortest prefix that anything is done for."
    )


class ReloadConfig(Section):
    """Take up a changed configuration file; SIGHUP always does."""

    watch: bool = Field(
        default=False, description="Reload when the file changes, symlinks followed."
    )
