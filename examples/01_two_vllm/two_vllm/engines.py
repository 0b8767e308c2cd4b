"""Start vLLM engines on loopback ports, read their counters, stop them."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from warmroute.proxy.demo.child import Child, free_port
from warmroute.proxy.demo.engine_view import EngineView
from warmroute.proxy.demo.progress import Step

_START_S = 240.0
_STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the engines of one run have in common."""

    environment: Path
    model: Path
    model_name: str
    num_blocks: int
    block_size: int = 32
    max_model_len: int = 4096


class Engine(EngineView):
    """One vLLM process of ours, with its children in its own group."""

    __slots__ = ("_child", "_options", "_port")

    def __init__(
        self,
        name: str,
        options: EngineOptions,
        folder: Path,
        http: aiohttp.ClientSession,
    ) -> None:
        self._port = free_port()
        self._options = options
        log = folder / f"engine-{name}.log"
        self._child = Child(f"engine {name}", log, _START_S, _STOP_S)
        super().__init__(name, f"http://127.0.0.1:{self._port}", http)

    async def start(self) -> None:
        """Launch the process; does not wait until it serves."""
        command = serve_command(self._options, self._port, f"kv-{self.name}")
        await self._child.start(command, {**os.environ, **serve_environ(self._options)})

    async def ready(self, step: Step) -> None:
        """Wait until the engine serves, ticking *step*.

        Raises:
            DemoError: it ended or took too long; quotes its log's end.
        """
        await self._child.ready(self.is_healthy, step.tick)

    def kill(self) -> None:
        """End the engine and all its children at once."""
        self._child.kill()

    async def stop(self) -> None:
        """End the engine politely, then for sure; safe to call again."""
        await self._child.stop()


def serve_command(options: EngineOptions, port: int, topic: str) -> Sequence[str]:
    """Return the command line of one engine.

    Its KV events stay on this machine: vLLM binds an address with a star on every
    interface, and connects to a concrete one, where warmroute binds.
    """
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://127.0.0.1:{free_port()}",
        "replay_endpoint": f"tcp://127.0.0.1:{free_port()}",
        "topic": topic,
    }
    return (
        str(options.environment / "bin" / "vllm"),
        "serve",
        str(options.model),
        f"--served-model-name={options.model_name}",
        "--host=127.0.0.1",
        f"--port={port}",
        "--dtype=bfloat16",
        f"--max-model-len={options.max_model_len}",
        "--max-num-seqs=8",
        f"--block-size={options.block_size}",
        f"--num-gpu-blocks-override={options.num_blocks}",
        "--enforce-eager",
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
        f"--kv-events-config={json.dumps(events)}",
        "--no-enable-log-requests",
    )


@asynccontextmanager
async def launched_engines(
    options: EngineOptions,
    names: Sequence[str],
    folder: Path,
    http: aiohttp.ClientSession,
) -> AsyncIterator[list[Engine]]:
    """Launch one engine a name for the length of the block; they do not serve yet."""
    engines = [Engine(name, options, folder, http) for name in names]
    try:
        for engine in engines:
            await engine.start()
        yield engines
    finally:
        await asyncio.gather(*(engine.stop() for engine in engines))


async def all_ready(engines: Sequence[Engine]) -> None:
    """Wait until all of them serve.

    Raises:
        DemoError: One ended or took too long; quotes its log's end.
    """
    with Step(f"starting {len(engines)} vLLM engines") as step:
        for engine in engines:
            await engine.ready(step)


@asynccontextmanager
async def running_engines(
    options: EngineOptions,
    names: Sequence[str],
    folder: Path,
    http: aiohttp.ClientSession,
) -> AsyncIterator[list[Engine]]:
    """Run one engine a name, ready to serve, for the length of the block."""
    async with launched_engines(options, names, folder, http) as engines:
        await all_ready(engines)
        yield engines


def serve_environ(options: EngineOptions) -> Mapping[str, str]:
    """Return the variables that an engine needs, one thread among them."""
    path = f"{options.environment / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    return {
        "PATH": path,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
