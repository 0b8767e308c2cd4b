"""Read a running engine over HTTP, and empty its prefix cache."""

import asyncio
import time
from dataclasses import dataclass

import aiohttp

from warmroute.proxy.demo.errors import DemoError

_SETTLE_S = 10.0
_FLUSH_PATHS = ("/warmroute/kv/flush", "/reset_prefix_cache")
_SUMS = {
    "vllm:prefix_cache_queries_total": "queried_tokens",
    "vllm:prefix_cache_hits_total": "hit_tokens",
    "vllm:request_success_total": "finished",
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:num_preemptions_total": "preemptions",
}


@dataclass(frozen=True, slots=True)
class Counters:
    """What one engine counted since it started; running and waiting: now."""

    queried_tokens: int = 0
    hit_tokens: int = 0
    finished: int = 0
    running: int = 0
    waiting: int = 0
    preemptions: int = 0

    def since(self, before: "Counters") -> "Counters":
        """Return what was added after *before*."""
        return Counters(
            self.queried_tokens - before.queried_tokens,
            self.hit_tokens - before.hit_tokens,
            self.finished - before.finished,
            self.running,
            self.waiting,
            self.preemptions - before.preemptions,
        )


class EngineView:
    """Read one running engine that has vLLM's metrics and cache reset."""

    __slots__ = ("_http", "name", "url")

    def __init__(self, name: str, url: str, http: aiohttp.ClientSession) -> None:
        self.name = name
        self.url = url.rstrip("/")
        self._http = http

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.url}>"

    async def counters(self) -> Counters:
        """Read the engine's counters."""
        async with self._http.get(f"{self.url}/metrics") as answer:
            return parse_counters(await answer.text())

    async def settled(self) -> Counters:
        """Read the counters once nothing runs or waits on the engine."""
        deadline = time.monotonic() + _SETTLE_S
        counters = await self.counters()
        while counters.running or counters.waiting:
            if time.monotonic() > deadline:
                raise DemoError(f"{self.url} still runs requests nobody waits for")
            await asyncio.sleep(0.1)
            counters = await self.counters()
        return counters

    async def flush(self) -> None:
        """Empty the prefix cache; the engine must be idle."""
        for path in _FLUSH_PATHS:
            async with self._http.post(f"{self.url}{path}", json={}) as answer:
                if answer.status != 404:
                    answer.raise_for_status()
                    return
        raise DemoError(
            f"{self.url} has none of {' and '.join(_FLUSH_PATHS)}; "
            "start vLLM with VLLM_SERVER_DEV_MODE=1"
        )

    async def is_healthy(self) -> bool:
        """Tell whether the engine answers its health check."""
        try:
            async with self._http.get(f"{self.url}/health") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False


def parse_counters(text: str) -> Counters:
    """Sum the engine's Prometheus samples over all their labels."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        field = _SUMS.get(line.partition("{")[0].partition(" ")[0])
        if field is not None:
            sums[field] = sums.get(field, 0.0) + float(line.rpartition(" ")[2])
    return Counters(**{field: int(value) for field, value in sums.items()})
