"""Traces: which requests are kept, and how their spans leave."""

from warmroute.proxy.telemetry.tracer import Tracer

__all__ = ["Tracer"]
