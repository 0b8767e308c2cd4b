"""Start vLLM engines on loopback ports, read their counters, stop them."""

import asyncio
import os
import signal
import socket
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from two_vllm.command import log_tail
from two_vllm.errors import ExampleError
from two_vllm.progress import Step

_START_S = 240.0
_STOP_S = 5.0
_SETTLE_S = 10.0
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


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the engines of one run have in common."""

    environment: Path
    model: Path
    model_name: str
    num_blocks: int
    block_size: int = 32
    max_model_len: int = 4096


class EngineView:
    """Read one running engine over HTTP."""

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
                raise ExampleError(f"{self.url} still runs requests nobody waits for")
            await asyncio.sleep(0.1)
            counters = await self.counters()
        return counters

    async def flush(self) -> None:
        """Empty the prefix cache; the engine must be idle."""
        async with self._http.post(f"{self.url}/reset_prefix_cache") as answer:
            if answer.status == 404:
                raise ExampleError(
                    f"{self.url} has no /reset_prefix_cache; "
                    "start it with VLLM_SERVER_DEV_MODE=1"
                )
            answer.raise_for_status()

    async def is_healthy(self) -> bool:
        """Tell whether the engine answers its health check."""
        try:
            async with self._http.get(f"{self.url}/health") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False


class Engine(EngineView):
    """One vLLM process of ours, with its children in its own group."""

    __slots__ = ("_log", "_options", "_port", "_process")

    def __init__(
        self,
        name: str,
        options: EngineOptions,
        folder: Path,
        http: aiohttp.ClientSession,
    ) -> None:
        self._port = free_port()
        self._options = options
        self._log = folder / f"engine-{name}.log"
        self._process: Process | None = None
        super().__init__(name, f"http://127.0.0.1:{self._port}", http)

    async def start(self) -> None:
        """Launch the process; does not wait until it serves."""
        with self._log.open("ab") as sink:
            self._process = await asyncio.create_subprocess_exec(
                *serve_command(self._options, self._port),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env={**os.environ, **_environ(self._options)},
                start_new_session=True,
            )

    async def ready(self, step: Step) -> None:
        """Wait until the engine serves, ticking *step*.

        Raises:
            ExampleError: it ended or took too long; quotes its log's end.
        """
        deadline = time.monotonic() + _START_S
        while not await self.is_healthy():
            if self._process is None or self._process.returncode is not None:
                raise ExampleError(self._failure("ended while starting"))
            if time.monotonic() > deadline:
                raise ExampleError(self._failure(f"not ready in {_START_S:.0f} s"))
            step.tick()
            await asyncio.sleep(0.5)

    def kill(self) -> None:
        """End the engine and all its children at once."""
        if self._process is not None:
            _signal_group(self._process.pid, signal.SIGKILL)

    async def stop(self) -> None:
        """End the engine politely, then for sure; safe to call again."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            if process.returncode is None:
                _signal_group(process.pid, signal.SIGTERM)
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            pass
        finally:
            _signal_group(process.pid, signal.SIGKILL)
        await process.wait()

    def _failure(self, what: str) -> str:
        return (
            f"engine {self.name} {what}; its log is {self._log} and ends with:\n"
            f"{log_tail(self._log)}"
        )


def serve_command(options: EngineOptions, port: int) -> Sequence[str]:
    """Return the command line of one engine."""
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
        "--no-enable-log-requests",
    )


@asynccontextmanager
async def running_engines(
    options: EngineOptions,
    names: Sequence[str],
    folder: Path,
    http: aiohttp.ClientSession,
) -> AsyncIterator[list[Engine]]:
    """Run one engine a name, ready to serve, for the length of the block."""
    engines = [Engine(name, options, folder, http) for name in names]
    try:
        with Step(f"starting {len(engines)} vLLM engines") as step:
            for engine in engines:
                await engine.start()
            for engine in engines:
                await engine.ready(step)
        yield engines
    finally:
        await asyncio.gather(*(engine.stop() for engine in engines))


def parse_counters(text: str) -> Counters:
    """Sum the engine's Prometheus samples over all their labels."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        field = _SUMS.get(line.partition("{")[0].partition(" ")[0])
        if field is not None:
            sums[field] = sums.get(field, 0.0) + float(line.rpartition(" ")[2])
    return Counters(**{field: int(value) for field, value in sums.items()})


def free_port() -> int:
    """Return a loopback port that is free right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _environ(options: EngineOptions) -> Mapping[str, str]:
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


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return
