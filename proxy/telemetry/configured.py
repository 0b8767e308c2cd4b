"""The tracer that a configuration asks for."""

import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING

from warmroute.policies.errors import ConfigError
from warmroute.proxy.config import Config
from warmroute.proxy.config.tracing import TracingConfig
from warmroute.proxy.telemetry.collector import GRPC, Collector, choose_collector
from warmroute.proxy.telemetry.sampling import choose_sampler
from warmroute.proxy.telemetry.span_tree import SpanTree
from warmroute.proxy.telemetry.tracer import Tracer
from warmroute.proxy.telemetry.unusual import Unusual

if TYPE_CHECKING:
    from warmroute.proxy.telemetry.export import OtlpSink


def tracer_of(config: Config) -> Tracer | None:
    """Return the tracer, None where nothing asks for spans.

    Raises:
        ConfigError: An extra is missing, or a variable is unusable.
    """
    return build_tracer(
        config.tracing,
        SpanTree(
            "https" if config.tls else "http",
            config.listen.host,
            config.listen.port,
            prompts=config.tracing is not None and config.tracing.prompts,
        ),
        version("warmroute"),
        os.environ,
    )


def build_tracer(
    tracing: TracingConfig | None,
    tree: SpanTree,
    version: str,
    environ: Mapping[str, str],
) -> Tracer | None:
    """Return a tracer, or None when no endpoint is configured.

    The standard ``OTEL_*`` variables win over *tracing*.

    Raises:
        ConfigError: An extra is missing, or a variable is unusable.
    """
    endpoint = None if tracing is None else tracing.endpoint
    given = tracing or TracingConfig(endpoint="http://127.0.0.1:4318")
    collector = choose_collector(endpoint, given.protocol, environ)
    if collector is None:
        return None
    sampler = choose_sampler(given.sample, environ)
    unusual = None
    if not sampler.is_off:
        unusual = Unusual(given.slow_s, given.mispredicted_tokens)
    sink = _sink(collector, tree, version)
    return Tracer(sink, sampler, unusual)


def _sink(collector: Collector, tree: SpanTree, version: str) -> "OtlpSink":
    extra = "otel-grpc" if collector.protocol == GRPC else "otel"
    try:
        from warmroute.proxy.telemetry.export import OtlpSink, open_exporter

        return OtlpSink(open_exporter(collector), tree, version)
    except ImportError as error:
        raise ConfigError(
            f"tracing: {error.name or error} is not installed; "
            f"install it by: pip install 'warmroute[{extra}]'"
        ) from error
