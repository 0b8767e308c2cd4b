"""A vLLM engine that sends its own spans."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from two_vllm.engines import EngineOptions, serve_command, serve_environ

from warmroute.proxy.demo.child import Child, free_port
from warmroute.proxy.demo.engine_view import EngineView

_START_S = 300.0


@asynccontextmanager
async def traced_engine(
    options: EngineOptions, collector: str, folder: Path, http: aiohttp.ClientSession
) -> AsyncIterator[tuple[EngineView, Child]]:
    """Run one engine for the length of the block; wait for it with `Child.ready`.

    Args:
        options: Model and sizes.
        collector: Where its spans go, by OTLP over HTTP.
        folder: Where its log is.
        http: Asks it whether it serves.
    """
    port = free_port()
    child = Child("engine", folder / "engine.log", _START_S, 5.0)
    endpoint = f"--otlp-traces-endpoint={collector}/v1/traces"
    command = (*serve_command(options, port, "kv-a"), endpoint)
    try:
        await child.start(command, {**os.environ, **_environ(options)})
        yield EngineView("a", f"http://127.0.0.1:{port}", http), child
    finally:
        await child.stop()


def _environ(options: EngineOptions) -> Mapping[str, str]:
    """Return the variables of an engine; its exporter speaks gRPC unless told."""
    spoken = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
    named = {"OTEL_SERVICE_NAME": "vllm", "OTEL_BSP_SCHEDULE_DELAY": "200"}
    return {**serve_environ(options), **spoken, **named}
