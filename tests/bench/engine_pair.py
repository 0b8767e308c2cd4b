"""Time the embedded engine and vLLM for CPU over HTTP, by turns, on one machine.

    python tests/bench/engine_pair.py [--repeats 7] [--dtype float32] [--json]

Both serve SmolLM2-135M-Instruct out of the same folder, get the same prompts of fresh
random token ids, and may use the same number of threads. A repeat asks one engine and
then the other, in turning order, for a cold prompt, the same one again, one decode
alone and eight together; the other engine is idle meanwhile. Times are the client's:
from sending a request to its first token. Medians, and the median of the ratios of a
repeat, which noise of the machine hits least.

vLLM is made ready by examples/01_two_vllm, in its cache, the first time. The embedded
engine computes in float32 whatever --dtype says. A step computes as many tokens as each
engine's default allows: 2,048, of the embedded one 512 where sequences share a step;
--step-tokens gives both another number.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from warmroute.proxy.demo import embedded
from warmroute.proxy.demo.child import Child, free_port
from warmroute.proxy.demo.engine_view import EngineView
from warmroute.proxy.demo.progress import Step

EXAMPLE = Path(__file__).parents[2] / "examples" / "01_two_vllm"
sys.path.insert(0, str(EXAMPLE))

from two_vllm.engines import (  # noqa: E402
    EngineOptions,
    serve_command,
    serve_environ,
)
from two_vllm.environment import ensure_environment  # noqa: E402
from two_vllm.models import ensure_smollm2  # noqa: E402

TOKENS = 8_192
VLLM_BLOCK = 32
"""vLLM for CPU takes multiples of 32; a warm prompt is computed from its last block."""

CONTEXT = 200
DECODED = 32
SETTLE_S = 0.5
FIGURES = ("cold_s", "warm_s", "decode_1_tokens_per_s", "decode_8_tokens_per_s")


@dataclass(frozen=True, slots=True)
class Settings:
    prompt: int
    repeats: int
    threads: int
    dtype: str
    step_tokens: int | None


class Client:
    """Ask one engine, and time its tokens."""

    def __init__(self, view: EngineView, http: aiohttp.ClientSession) -> None:
        self.view = view
        self.http = http
        self.model = ""

    async def find_model(self) -> None:
        async with self.http.get(f"{self.view.url}/v1/models") as answer:
            self.model = (await answer.json())["data"][0]["id"]

    async def arrivals(self, prompt: list[int], max_tokens: int) -> list[float]:
        """Return when each event with a token came, the time of sending first."""
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
        times = [time.perf_counter()]
        url = f"{self.view.url}/v1/completions"
        async with self.http.post(url, json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    gained = event["choices"][0].get("token_ids") or ()
                    times += [time.perf_counter()] * len(gained)
        assert len(times) == max_tokens + 1, f"{len(times) - 1} tokens"
        return times

    async def ttft(self, prompt: list[int]) -> float:
        sent, first = await self.arrivals(prompt, 1)
        return first - sent

    async def decode_rate(self, prompts: Sequence[list[int]]) -> float:
        """Tokens a second from when the last of the prompts has its first token."""
        all_times = await asyncio.gather(
            *(self.arrivals(prompt, DECODED) for prompt in prompts)
        )
        start = max(times[1] for times in all_times)
        stop = max(times[-1] for times in all_times)
        made = sum(at > start for times in all_times for at in times)
        return made / (stop - start)


@asynccontextmanager
async def running_vllm(
    settings: Settings, folder: Path, http: aiohttp.ClientSession
) -> AsyncIterator[EngineView]:
    environment = ensure_environment()
    options = EngineOptions(
        environment,
        ensure_smollm2(environment),
        "smollm2",
        TOKENS // VLLM_BLOCK,
        VLLM_BLOCK,
    )
    port = free_port()
    view = EngineView("vllm", f"http://127.0.0.1:{port}", http)
    command = [
        f"--dtype={settings.dtype}" if part.startswith("--dtype=") else part
        for part in serve_command(options, port, "kv")
    ]
    if settings.step_tokens is not None:
        command.append(f"--max-num-batched-tokens={settings.step_tokens}")
    threads = {"OMP_NUM_THREADS": str(settings.threads)}
    child = Child("vllm", folder / "vllm.log", patience_s=300.0)
    try:
        with Step("starting vLLM") as step:
            environ = {**os.environ, **serve_environ(options), **threads}
            await child.start(command, environ)
            await child.ready(view.is_healthy, step.tick)
        yield view
    finally:
        await child.stop()


async def measure(settings: Settings) -> dict[str, dict[str, list[float]]]:
    model = str(ensure_smollm2(ensure_environment()))
    ours = embedded.EngineOptions(
        TOKENS // 16, model, settings.threads, settings.step_tokens
    )
    async with AsyncExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="engine-pair-"))
        print(f"logs: {folder}", file=sys.stderr)
        timeout = aiohttp.ClientTimeout(total=600)
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        vllm = await stack.enter_async_context(running_vllm(settings, folder, http))
        engines = embedded.running_engines(ours, ["embedded"], folder, http)
        (view,) = await stack.enter_async_context(engines)
        clients = [Client(view, http), Client(vllm, http)]
        return await _by_turns(settings, clients)


async def _by_turns(
    settings: Settings, clients: list[Client]
) -> dict[str, dict[str, list[float]]]:
    numbers = random.Random(1)
    figures: dict[str, dict[str, list[float]]] = {
        one.view.name: {figure: [] for figure in FIGURES} for one in clients
    }
    for client in clients:
        await client.find_model()
    for at in range(settings.repeats + 1):
        print(f"  {at} of {settings.repeats}", file=sys.stderr)
        prompts = [_prompt(numbers, settings.prompt)]
        prompts += [_prompt(numbers, CONTEXT) for _ in range(9)]
        for client in clients[:: -1 if at % 2 else 1]:
            measured = await _measure_one(client, prompts)
            if at:  # the first one warms up
                for figure, value in zip(FIGURES, measured, strict=True):
                    figures[client.view.name][figure].append(value)
    return figures


async def _measure_one(client: Client, prompts: list[list[int]]) -> list[float]:
    long, alone, *together = prompts
    await client.view.flush()
    await asyncio.sleep(SETTLE_S)  # threads of the other engine spin for a while
    return [
        await client.ttft(long),
        await client.ttft(long),
        await client.decode_rate([alone]),
        await client.decode_rate(together),
    ]


def _prompt(numbers: random.Random, length: int) -> list[int]:
    return [numbers.randrange(100, 49_000) for _ in range(length)]


def summary(figures: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Return medians an engine, and of the embedded one's ratios to vLLM."""
    ours, theirs = figures["embedded"], figures["vllm"]
    table = {
        name: {figure: statistics.median(values) for figure, values in own.items()}
        for name, own in figures.items()
    }
    table["embedded / vllm"] = {
        figure: statistics.median(
            a / b for a, b in zip(ours[figure], theirs[figure], strict=True)
        )
        for figure in FIGURES
    }
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--prompt", type=int, default=1_500, help="tokens")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--dtype", default="bfloat16", choices=["bfloat16", "float32"], help="of vLLM"
    )
    parser.add_argument("--step-tokens", type=int, help="of both (each one's default)")
    parser.add_argument("--json", action="store_true", help="print every value")
    given = parser.parse_args()
    settings = Settings(
        given.prompt, given.repeats, given.threads, given.dtype, given.step_tokens
    )
    figures = asyncio.run(measure(settings))
    if given.json:
        print(json.dumps(figures, indent=2))
        return
    print(f"{'':16}" + "".join(f"{figure:>24}" for figure in FIGURES))
    for name, row in summary(figures).items():
        print(f"{name:16}" + "".join(f"{row[figure]:24.3f}" for figure in FIGURES))


if __name__ == "__main__":
    main()
