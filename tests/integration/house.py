"""A process in front of two caching engines, asked through both of its ports."""

from typing import Any

import pytest
from conformance.rig import Reply, post
from integration import served
from integration.caching_engine import CachingEngine, caching_engine
from integration.served import Served, Stage

stage = served.stage


class House:
    """A process in front of two caching engines, `a` and `b`."""

    def __init__(self, proxy: Served, engines: list[CachingEngine]) -> None:
        self.proxy = proxy
        self.engines = engines
        self.num_sent = 0

    async def send(self, prompt: list[int], **body: Any) -> tuple[str, Reply]:
        """Send token ids; returns the request id and the answer."""
        self.num_sent += 1
        request_id = f"r-{self.num_sent}"
        extra = f"x-request-id: {request_id}\r\nx-warmroute-explain: 1\r\n"
        fields = {"model": "m", "prompt": prompt, **body}
        reply = await self.proxy.request(post(fields, "/v1/completions", extra))
        assert reply.status == 200, reply
        return request_id, reply

    async def explain(self, prompt: list[int], **body: Any) -> Any:
        fields = {"model": "m", "prompt": prompt, **body}
        request = {"path": "/v1/completions", "headers": {}, "body": fields}
        status, answer = await self.proxy.admin("/api/explain", "POST", json=request)
        assert status == 200, answer
        return answer

    async def settled(self, request_id: str) -> Any:
        """Return the decision; whoever has the answer finds its outcome there."""
        _, decision = await self.proxy.admin(f"/api/decisions/{request_id}")
        assert decision.get("outcome"), decision
        return decision


@pytest.fixture
async def house(stage: Stage) -> House:
    """Start the process and wait until it knows both engines."""
    engines = [caching_engine(), caching_engine()]
    for engine in engines:
        stage.engines.append(await engine.start())
    backends = [
        {"name": name, **engine.entry}
        for name, engine in zip("ab", engines, strict=True)
    ]
    proxy = await stage.spawn(
        backends=backends, policy="expected_ttft", index={"max_bytes": 2**20}
    )
    await proxy.ready(2)
    await proxy.until("/metrics", lambda text: text.count("backend_up{") == 2)
    return House(proxy, engines)


def matched(decision: Any) -> dict[str, dict[str, int]]:
    return {one["backend"]: one["matched_tokens"] for one in decision["candidates"]}
