"""Phoenix, a vLLM engine and warmroute, started together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from two_vllm.engines import EngineOptions

from traced.client import TracingClient
from traced.engine import traced_engine
from traced.front import traced_front
from traced.phoenix import Phoenix, running_phoenix
from warmroute.proxy.demo.errors import DemoError
from warmroute.proxy.demo.progress import Step

_ARRIVAL_S = 60.0
NAMES = ("ask a question", "POST /v1/chat/completions", "warmroute.route", "chat")
ENGINE_SPAN = "llm_request"
SYSTEM = "You are a patient guide to a museum of computing. " * 12
QUESTIONS = ("What is a relay?", "And who built the first machine of relays?")


@dataclass(frozen=True, slots=True)
class Stack:
    """What runs: where traces are seen, and where chats are sent."""

    phoenix: Phoenix
    url: str
    model: str

    async def converse(self, http: aiohttp.ClientSession) -> str:
        """Ask two questions of one chat; returns the trace of the second."""
        client = TracingClient(self.phoenix.url, http)
        messages = [{"role": "system", "content": SYSTEM}]
        trace_id = ""
        try:
            for question in QUESTIONS:
                messages.append({"role": "user", "content": question})
                trace_id = await client.chat(self.url, self.model, messages, 24)
                messages.append({"role": "assistant", "content": "A switch."})
        finally:
            await asyncio.to_thread(client.close)
        return trace_id

    async def arrived(self, trace_id: str) -> list[dict[str, Any]]:
        """Wait until the spans of client, warmroute and engine are there.

        Raises:
            DemoError: They did not come in a minute.
        """
        wanted = len(NAMES) + 1
        found: list[dict[str, Any]] = []
        try:
            async with asyncio.timeout(_ARRIVAL_S):
                while len(found) < wanted:
                    await asyncio.sleep(0.5)
                    found = await self.phoenix.spans(trace_id)
        except TimeoutError as error:
            names = ", ".join(one["name"] for one in found) or "none"
            raise DemoError(
                f"after {_ARRIVAL_S:.0f} s Phoenix has these spans: {names}"
            ) from error
        return found


@asynccontextmanager
async def running_stack(
    environment: Path, options: EngineOptions, folder: Path, http: aiohttp.ClientSession
) -> AsyncIterator[Stack]:
    """Run everything for the length of the block."""
    async with running_phoenix(environment, folder, http) as phoenix:
        with Step("starting Phoenix") as step:
            await phoenix.ready(step)
        async with traced_engine(options, phoenix.url, folder, http) as (view, child):
            with Step("starting a vLLM engine") as step:
                await child.ready(view.is_healthy, step.tick)
            model = (options.model_name, str(options.model))
            front = traced_front(view.url, phoenix.url, model, folder, http)
            async with front as url:
                yield Stack(phoenix, url, options.model_name)
