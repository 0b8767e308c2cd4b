"""The tracer that a configuration asks for."""

from importlib.metadata import version

from warmroute.proxy.config import Config
from warmroute.proxy.telemetry.tracer import Tracer, build_tracer


def tracer_of(config: Config) -> Tracer | None:
    """Return the tracer, None where nothing asks for spans."""
    tracing = config.tracing
    return build_tracer(
        tracing.endpoint if tracing else None,
        tracing.sample if tracing else 1.0,
        version=version("warmroute"),
        scheme="https" if config.tls else "http",
        host=config.listen.host,
        port=config.listen.port,
    )
