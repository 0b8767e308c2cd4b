"""Real embedded engines as processes, with their events, behind a real proxy."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from conformance.rig import post
from integration.engine_process import EngineRun, run_engine
from integration.served import Served, Stage

from warmroute.proxy.demo.child import free_port

BLOCK = 16
ENGINE = ("--port", "0", "--num-blocks", "64", "--threads", "1")


class Fleet:
    """A proxy in front of embedded engines `a`, `b` and so on."""

    def __init__(self, proxy: Served, engines: list[EngineRun]) -> None:
        self.proxy = proxy
        self.engines = engines

    async def send(
        self, prompt: list[int], session: str | None = None, **body: Any
    ) -> dict[str, Any]:
        """Send token ids through the proxy; returns backend and usage."""
        extra = "x-warmroute-explain: 1\r\n"
        if session is not None:
            extra += f"x-session-id: {session}\r\n"
        fields = {"model": "tiny", "prompt": prompt, "max_tokens": 1, **body}
        reply = await self.proxy.request(post(fields, "/v1/completions", extra))
        assert reply.status == 200, reply
        usage = reply.json()["usage"]
        return {
            "backend": reply.value("x-warmroute-backend"),
            "cached": usage["prompt_tokens_details"]["cached_tokens"],
        }

    async def kv(self, verb: str, **body: Any) -> dict[str, Any]:
        """Order a verb; returns what each backend answered."""
        status, answer = await self.proxy.admin(f"/api/kv/{verb}", "POST", json=body)
        assert status == 200, answer
        results: dict[str, Any] = answer["results"]
        return results

    async def matched(self, prompt: list[int]) -> dict[str, int]:
        """Ask the view how many tokens of a prompt each backend has."""
        body = {"model": "tiny", "prompt": prompt}
        asked = {"path": "/v1/completions", "headers": {}, "body": body}
        status, answer = await self.proxy.admin("/api/explain", "POST", json=asked)
        assert status == 200, answer
        return {
            one["backend"]: sum(one["matched_tokens"].values())
            for one in answer["candidates"]
        }

    async def direct(self, at: int, verb: str, **options: Any) -> Any:
        """Ask the door of an engine itself; returns status and JSON."""
        url = f"{self.engines[at].url}/warmroute/kv/{verb}"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, **options) as response,
        ):
            return response.status, await response.json()


@asynccontextmanager
async def running_fleet(
    folder: Path,
    count: int = 2,
    *arguments: str,
    events: bool = True,
    block_sizes: Sequence[int] = (),
    **settings: Any,
) -> AsyncIterator[Fleet]:
    """Run engines with a proxy in front for the length of the block."""
    async with AsyncExitStack() as stack:
        runs = []
        for at in range(count):
            flags = [*ENGINE, *arguments]
            if block_sizes:
                flags += ["--block-size", str(block_sizes[at])]
            if events:
                flags += ["--kv-events", f"tcp://*:{free_port()}"]
                flags += ["--kv-events-replay", f"tcp://*:{free_port()}"]
            runs.append(await stack.enter_async_context(run_engine(*flags)))
        for run in runs:
            await run.until_ready()
        stage = Stage(folder)
        stack.push_async_callback(stage.close)
        settings.setdefault("policy", "expected_ttft")
        settings["backends"] = [
            {"name": name, "url": run.url, "engine": "embedded"}
            for name, run in zip("abcd", runs, strict=False)
        ]
        proxy = await (await stage.spawn(**settings)).ready(count)
        await proxy.until("/api/state", lambda state: _is_known(state, events))
        yield Fleet(proxy, runs)


def _is_known(state: Any, events: bool) -> bool:
    """Tell whether the proxy hears every engine and knows its levers."""
    return all(
        one["view"]["source"] == ("events" if events else "mirror")
        and one["view"].get("status") in (("live", "silent") if events else (None,))
        and one["kv"]["flush"] is True
        for one in state["backends"]
    )


def prompt(seed: int, length: int = 100) -> list[int]:
    """Return token ids that differ from those of other seeds."""
    return [3 + (seed * 31 + at * 7 + at * at % 13) % 256 for at in range(length)]
