"""One real SGLang on a loopback port, and how the tests speak to it."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp

from warmroute.adapters.base import Endpoint
from warmroute.proxy.demo.child import Child, free_port

MODEL = "tiny"
PAGE = 16
_START_S = 400.0
_STOP_S = 2.0


@dataclass(frozen=True, slots=True)
class SGLangOptions:
    """How one engine of the tests is started.

    Args:
        environment: That of `make_env`.
        model: Folder of the model.
        folder: For the log, and for what the engine keeps in its home.
        pool_tokens: Tokens that the cache holds.
        binds: Whether its publisher binds on loopback, instead of connecting there.
        arguments: More flags.
        environ: More variables.
    """

    environment: Path
    model: Path
    folder: Path
    pool_tokens: int = 4096
    page_size: int = PAGE
    context_length: int = 4096
    binds: bool = False
    arguments: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)


class SGLangEngine:
    """One SGLang process of ours, with its children in its own group."""

    def __init__(self, options: SGLangOptions, http: aiohttp.ClientSession) -> None:
        self.options = options
        self.http = http
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.events = f"tcp://127.0.0.1:{free_port()}"
        self.replay = f"tcp://127.0.0.1:{free_port()}"
        self.endpoint = Endpoint(http, self.url, {}, 60)
        self.log = options.folder / f"sglang-{self.port}.log"
        self._child = Child("SGLang", self.log, _START_S, _STOP_S)

    def __repr__(self) -> str:
        return f"<SGLangEngine {self.url}>"

    async def __aenter__(self) -> Self:
        """Launch the process and wait until it serves."""
        try:
            await self._child.start(self._command(), self._environ())
            await self._child.ready(self._is_healthy)
        except BaseException:
            await self._child.stop()
            raise
        return self

    async def __aexit__(self, *raised: object) -> None:
        """End the process."""
        await self._child.stop()

    async def generate(
        self, tokens: Sequence[int], max_tokens: int = 1, **fields: Any
    ) -> dict[str, Any]:
        """Generate behind token ids; returns what the engine tells about it."""
        sampling = {"max_new_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": list(tokens), "sampling_params": sampling, **fields}
        async with self.http.post(f"{self.url}/generate", json=body) as response:
            answer: dict[str, Any] = await response.json()
            assert response.status == 200, answer
        told: dict[str, Any] = answer["meta_info"]
        return told

    async def cached(self, tokens: Sequence[int], **fields: Any) -> int:
        """Generate one token; returns how many of the prompt were cached."""
        told: int = (await self.generate(tokens, **fields))["cached_tokens"]
        return told

    async def post(self, path: str, body: Any = None, **options: Any) -> Any:
        """Post JSON, which must succeed; returns the JSON of the answer."""
        url = f"{self.url}{path}"
        async with self.http.post(url, json=body or {}, **options) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def flush(self) -> None:
        """Empty the cache by SGLang's own path."""
        async with self.http.post(f"{self.url}/flush_cache") as response:
            assert response.status == 200, await response.text()

    async def _is_healthy(self) -> bool:
        try:
            async with self.http.get(
                f"{self.url}/health_generate", timeout=aiohttp.ClientTimeout(20)
            ) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    def _command(self) -> Sequence[str]:
        options = self.options
        events: dict[str, object] = {
            "publisher": "zmq",
            "endpoint": self.events,
            "replay_endpoint": self.replay,
            "topic": f"kv-{self.port}",
        }
        if options.binds:
            events["bind"] = True
        return (
            str(options.environment / "bin" / "python"),
            *("-m", "sglang.launch_server", "--device=cpu"),
            f"--model-path={options.model}",
            f"--served-model-name={MODEL}",
            *("--host=127.0.0.1", f"--port={self.port}"),
            *("--attention-backend=torch_native", "--sampling-backend=pytorch"),
            *("--disable-cuda-graph", "--disable-overlap-schedule"),
            *("--grammar-backend=none", "--skip-server-warmup", "--sleep-on-idle"),
            *("--enable-cache-report", "--enable-metrics"),
            f"--page-size={options.page_size}",
            f"--max-total-tokens={options.pool_tokens}",
            f"--context-length={options.context_length}",
            "--max-running-requests=8",
            f"--kv-events-config={json.dumps(events)}",
            *options.arguments,
        )

    def _environ(self) -> Mapping[str, str]:
        options = self.options
        path = f"{options.environment / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
        return {
            **os.environ,
            "PATH": path,
            "SGLANG_USE_CPU_ENGINE": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            **options.environ,
        }
