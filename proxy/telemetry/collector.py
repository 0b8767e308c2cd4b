"""Where spans are sent, and how: the file, and the standard variables over it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from warmroute.policies.errors import ConfigError

HTTP = "http/protobuf"
GRPC = "grpc"

_ENDPOINTS: Sequence[str] = (
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
)
_PROTOCOLS: Sequence[str] = (
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
)


@dataclass(frozen=True, slots=True)
class Collector:
    """Who receives the spans.

    Attributes:
        url: Its address; None where the exporter takes it from the variables.
        protocol: ``http/protobuf`` or ``grpc``.
    """

    url: str | None
    protocol: str = HTTP


def choose_collector(
    endpoint: str | None, protocol: str, environ: Mapping[str, str]
) -> Collector | None:
    """Return who receives the spans, None where nothing asks for them.

    Raises:
        ConfigError: A variable names a protocol that is not spoken.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return None
    is_given = any(environ.get(name) for name in _ENDPOINTS)
    if not is_given and not endpoint:
        return None
    spoken = _protocol(protocol, environ)
    if is_given:
        return Collector(None, spoken)
    assert endpoint is not None
    return Collector(endpoint if spoken == GRPC else _traces_url(endpoint), spoken)


def _protocol(protocol: str, environ: Mapping[str, str]) -> str:
    for name in _PROTOCOLS:
        if given := environ.get(name, "").strip().lower():
            if given not in (HTTP, GRPC):
                raise ConfigError(
                    f"{name}: unknown protocol {given!r} (known: {GRPC}, {HTTP})"
                )
            return given
    return protocol


def _traces_url(endpoint: str) -> str:
    """Return the signal's URL: the file names a collector, as the base URL does."""
    base = endpoint.rstrip("/")
    return base if base.endswith("/v1/traces") else f"{base}/v1/traces"
