"""A real vLLM with the plugin beside it, without an installation of its own."""

import asyncio
import io
import json
import os
import random
import tomllib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from two_vllm.engines import EngineOptions

from warmroute.proxy.demo.child import Child, free_port

ROOT = Path(__file__).parents[2]
TOKEN = "a token of the tests"
BLOCK = 32
NUM_BLOCKS = 161
LENGTH = 15 * BLOCK
MOST = LENGTH - BLOCK
"""Most of an aligned prompt that can be cached: its last token is computed always."""
HOST_TIER = (
    "--kv-transfer-config="
    + json.dumps(
        {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "spec_name": "WarmrouteCpuOffloadingSpec",
                "spec_module_path": "warmroute.adapters.vllm.plugin.cpu_offload",
                "cpu_bytes_to_use": 32 * 1024 * 1024,
                "self_describing_kv_events": True,
            },
        }
    ),
)
FLOORS = ("proxy", "adapters", "policies")


def link_package(folder: Path) -> Path:
    """Make a folder from which Python imports this checkout, plugins included."""
    (folder / "warmroute").mkdir(parents=True)
    for floor in FLOORS:
        (folder / "warmroute" / floor).symlink_to(ROOT / floor)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / f"warmroute-{project['version']}.dist-info"
    info.mkdir()
    head = f"Metadata-Version: 2.1\nName: warmroute\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(head)
    lines = []
    for group, entries in project["entry-points"].items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {value}" for name, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def pretend(folder: Path, version: str) -> Path:
    """Have vLLM believe in another release of itself; *folder* is imported from."""
    (folder / "sitecustomize.py").write_text(
        "import sys, types\n"
        "fake = types.ModuleType('vllm._version')\n"
        f"fake.__version__ = fake.version = {version!r}\n"
        "fake.__version_tuple__ = (0, 99, 0)\n"
        "sys.modules['vllm._version'] = fake\n"
    )
    return folder


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """How one engine of the tests differs from the others.

    Args:
        base: Its model, where that is not the one of the others.
    """

    name: str
    folder: Path
    site: Path
    token: str | None = TOKEN
    plugins: str | None = "warmroute"
    arguments: Sequence[str] = ()
    num_blocks: int = NUM_BLOCKS
    max_model_len: int = 2048
    has_replay: bool = True
    environ: Mapping[str, str] = field(default_factory=dict)
    base: EngineOptions | None = None


class PluginEngine:
    """One vLLM with the plugin, and how the tests speak to it."""

    def __init__(
        self, base: EngineOptions, options: PluginOptions, http: aiohttp.ClientSession
    ) -> None:
        self.base = options.base or base
        self.options = options
        self.http = http
        self.url = f"http://127.0.0.1:{free_port()}"
        self.events = f"tcp://127.0.0.1:{free_port()}"
        self.replay = f"tcp://127.0.0.1:{free_port()}"
        self.log = options.folder / f"{options.name}.log"
        self._child = Child(f"engine {options.name}", self.log, 240.0, 5.0)

    @property
    def pid(self) -> int:
        """Number of the engine's process group."""
        process = self._child._process
        assert process is not None
        return process.pid

    async def start(self) -> None:
        await self._child.start(self._command(), self._environ())

    async def ready(self) -> None:
        await self._child.ready(self._is_healthy)

    async def stop(self) -> None:
        await self._child.stop()

    async def kv(
        self, verb: str, body: Mapping[str, Any] | None = None, **options: Any
    ) -> dict[str, Any]:
        """Perform a verb, which must succeed."""
        status, answer = await self.ask(verb, body, **options)
        assert status == 200, answer
        return answer

    async def ask(
        self,
        verb: str,
        body: Mapping[str, Any] | bytes | None = None,
        *,
        token: str | None = TOKEN,
        kind: str = "application/json",
        method: str = "POST",
    ) -> tuple[int, dict[str, Any]]:
        """Call the door; return status and answer."""
        headers = {"content-type": kind}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        async with self.http.request(
            method,
            f"{self.url}/warmroute/kv/{verb}",
            data=io.BytesIO(data) if method == "POST" else None,
            headers=headers,
        ) as response:
            return response.status, await response.json()

    async def complete(
        self, tokens: Sequence[int], max_tokens: int = 1, **fields: Any
    ) -> dict[str, Any]:
        """Generate greedily behind token ids."""
        body = {
            "model": self.base.model_name,
            "prompt": list(tokens),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            **fields,
        }
        async with self.http.post(f"{self.url}/v1/completions", json=body) as response:
            answer: dict[str, Any] = await response.json()
            assert response.status == 200, answer
            return answer

    async def cached(self, tokens: Sequence[int], **fields: Any) -> int:
        """Send a prompt; return how many of its tokens were cached."""
        usage = (await self.complete(tokens, **fields))["usage"]
        details = usage.get("prompt_tokens_details") or {}
        return int(details.get("cached_tokens") or 0)

    async def is_whole(self) -> bool:
        """Ask vLLM itself whether every page is free; it resets its cache if so."""
        async with self.http.post(f"{self.url}/reset_prefix_cache") as response:
            answer = await response.read()
            return response.status == 200 and b"false" not in answer

    async def metric(self, name: str) -> float:
        """Read a metric of vLLM, summed over its labels."""
        async with self.http.get(f"{self.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        own = [line for line in lines if line.startswith((f"{name}{{", f"{name} "))]
        return sum(float(line.rpartition(" ")[2]) for line in own)

    async def _is_healthy(self) -> bool:
        try:
            async with self.http.get(f"{self.url}/health") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    def _command(self) -> list[str]:
        options, base = self.options, self.base
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.events,
            "replay_endpoint": self.replay,
            "topic": f"kv-{options.name}",
        }
        if not options.has_replay:
            del events["replay_endpoint"]
        return [
            str(base.environment / "bin" / "vllm"),
            "serve",
            str(base.model),
            f"--served-model-name={base.model_name}",
            "--host=127.0.0.1",
            f"--port={self.url.rpartition(':')[2]}",
            "--dtype=bfloat16",
            f"--max-model-len={options.max_model_len}",
            "--max-num-seqs=8",
            f"--block-size={BLOCK}",
            f"--num-gpu-blocks-override={options.num_blocks}",
            "--enforce-eager",
            "--enable-prefix-caching",
            "--enable-prompt-tokens-details",
            f"--kv-events-config={json.dumps(events)}",
            "--no-enable-log-requests",
            *options.arguments,
        ]

    def _environ(self) -> dict[str, str]:
        path = self.base.environment / "bin"
        environ = {
            **os.environ,
            "PATH": f"{path}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONPATH": str(self.options.site),
            "PYTHONDONTWRITEBYTECODE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            **self.options.environ,
        }
        given = {
            "VLLM_PLUGINS": self.options.plugins,
            "WARMROUTE_KV_TOKEN": self.options.token,
        }
        for name, value in given.items():
            environ.pop(name, None)
            if value is not None:
                environ[name] = value
        return environ


def prompt(seed: str, length: int = LENGTH) -> list[int]:
    """Make up token ids, the same ones for the same seed."""
    chance = random.Random(seed)
    return [chance.randrange(3, 250) for _ in range(length)]


async def fill(engine: PluginEngine, name: str, count: int = 14) -> None:
    """Send prompts that nobody sends again; 14 of them are more than the pool."""
    for at in range(count):
        await engine.complete(prompt(f"{name}-{at}"))


def blocks(tokens: Sequence[int], **fields: object) -> dict[str, object]:
    """Name the blocks of token ids."""
    return {"token_ids": list(tokens), **fields}


@asynccontextmanager
async def running(
    base: EngineOptions, options: Sequence[PluginOptions]
) -> AsyncIterator[list[PluginEngine]]:
    """Run engines side by side, ready to serve, for the length of the block.

    Each call has a connection of its own: vLLM closes those that idle for 5 seconds,
    and may do so just when another call is sent.
    """
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as http:
        engines = [PluginEngine(base, one, http) for one in options]
        try:
            for engine in engines:
                await engine.start()
            for engine in engines:
                await engine.ready()
            yield engines
        finally:
            await asyncio.gather(*(engine.stop() for engine in engines))
