"""A fake: the control endpoints of an engine, over real sockets, on command."""

import asyncio
import json
import ssl
from collections import Counter

from aiohttp import web

METRICS_VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}
vllm:num_requests_waiting_by_reason{{engine="0",model_name="m",reason="capacity"}} 9
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {usage}
vllm:cache_config_info{{block_size="32",engine="0",num_gpu_blocks="{blocks}"}} 1.0
vllm:time_to_first_token_seconds_bucket{{engine="0",le="+Inf",model_name="m"}} 7
process_start_time_seconds {boot}
"""

METRICS_SGLANG = """\
sglang:num_running_reqs{{dp_rank="0",tp_rank="0"}} {running}
sglang:num_running_reqs{{dp_rank="0",tp_rank="1"}} {running}
sglang:num_queue_reqs{{dp_rank="0",tp_rank="0"}} {waiting}
sglang:token_usage{{dp_rank="0",tp_rank="0"}} {usage}
sglang:page_size{{dp_rank="0"}} 16
sglang:max_total_num_tokens{{dp_rank="0"}} 4096
"""


class FakeEngine:
    """A fake engine: its attributes say how it answers.

    *kind* is vllm, sglang or openai. *hanging* names paths that never answer,
    *statuses* forces a status, *bodies* a body. *calls* counts requests a path.
    """

    def __init__(self, kind: str = "vllm", models: tuple[str, ...] = ("m",)) -> None:
        self.kind = kind
        self.owner: str | None = kind
        self.models = models
        self.parents: dict[str, str] = {}
        self.key: str | None = None
        self.boot = 1000.0
        self.load = {"running": 2, "waiting": 5, "usage": 0.25, "blocks": 100}
        self.hanging: set[str] = set()
        self.statuses: dict[str, int] = {}
        self.bodies: dict[str, bytes] = {}
        self.calls: Counter[str] = Counter()
        self.posted: list[object] = []
        self.port = 0
        self._called = asyncio.Condition()
        self._gone = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._tls: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://127.0.0.1:{self.port}"

    async def start(self, tls: ssl.SSLContext | None = None) -> "FakeEngine":
        """Listen; again on the same port after a stop."""
        self._tls = tls
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._gone.clear()
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(
            self._runner,
            "127.0.0.1",
            self.port,
            reuse_address=True,
            ssl_context=tls,
        )
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        """Close the listener and all connections: the process is gone."""
        self._gone.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def called(self, path: str, times: int = 1) -> None:
        """Wait until a path was asked so many times more."""
        goal = self.calls[path] + times
        async with self._called:
            await self._called.wait_for(lambda: self.calls[path] >= goal)

    async def _answer(self, request: web.Request) -> web.Response:
        async with self._called:
            self.calls[request.path] += 1
            self._called.notify_all()
        if request.method == "POST":
            self.posted.append(await request.json())
        if request.path in self.hanging:
            await self._gone.wait()
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.Response(status=401)
        if request.path in self.bodies:
            status = self.statuses.get(request.path, 200)
            return web.Response(status=status, body=self.bodies[request.path])
        status, body = self._render(request.path)
        status = self.statuses.get(request.path, status)
        headers = {"Location": "/elsewhere"} if 300 <= status < 400 else {}
        return web.Response(status=status, text=body, headers=headers)

    def _render(self, path: str) -> tuple[int, str]:
        known = {"/v1/models": self._listing, "/v1/completions": lambda: "{}"}
        if self.kind == "vllm":
            known |= {
                "/health": lambda: "",
                "/version": lambda: '{"version": "0.32.0"}',
                "/metrics": lambda: METRICS_VLLM.format(boot=self.boot, **self.load),
            }
        elif self.kind == "sglang":
            known |= {
                "/health": lambda: "",
                "/server_info": self._server_info,
                "/v1/loads": self._loads,
                "/metrics": lambda: METRICS_SGLANG.format(**self.load),
                "/abort_request": lambda: "",
            }
        return (200, known[path]()) if path in known else (404, "")

    def _listing(self) -> str:
        """List models as vLLM does: made just now, each time."""
        number = self.calls["/v1/models"]
        cards = [
            {
                "id": model,
                "object": "model",
                "created": 1_790_000_000 + number,
                "permission": [{"id": f"modelperm-{number}"}],
                "owned_by": self.owner,
                "max_model_len": 4096,
                "parent": self.parents.get(model),
            }
            for model in self.models
        ]
        return json.dumps({"object": "list", "data": cards})

    def _server_info(self) -> str:
        info = {
            "version": "0.5.23",
            "page_size": 16,
            "dp_size": 2,
            "max_total_num_tokens": 4096,
            "random_seed": int(self.boot),
            "enable_cache_report": True,
        }
        return json.dumps(info)

    def _loads(self) -> str:
        rank = {
            "num_running_reqs": 1,
            "num_waiting_reqs": 2,
            "num_waiting_uncached_tokens": 300,
            "token_usage": 0.5,
            "max_total_num_tokens": 4096,
        }
        return json.dumps({"loads": [rank, {**rank, "token_usage": 0.7}]})
