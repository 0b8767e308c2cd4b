"""A real vLLM that sends its spans to a collector of ours."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from integration.otlp_receiver import OtlpReceiver
from traced.engine import traced_engine
from two_vllm.engines import EngineOptions

from warmroute.proxy.demo.child import Child
from warmroute.proxy.demo.engine_view import EngineView


@dataclass(frozen=True, slots=True)
class Traced:
    """The engine, and who collects what it tells."""

    collector: OtlpReceiver
    view: EngineView
    child: Child


@asynccontextmanager
async def launched_traced(
    options: EngineOptions, folder: Path, http: aiohttp.ClientSession
) -> AsyncIterator[Traced]:
    """Launch one for the length of the block; it does not serve yet."""
    async with (
        OtlpReceiver() as collector,
        traced_engine(options, collector.url, folder, http) as (view, child),
    ):
        yield Traced(collector, view, child)
