"""Traces: which requests are sampled, and how their spans leave."""

from warmroute.proxy.telemetry.tracer import (
    Tracer,
    build_tracer,
)

__all__ = [
    "Tracer",
    "build_tracer",
]
