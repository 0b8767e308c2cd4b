"""Print what the embedded engine's frame makes of its model, as ratios in one run.

    python tests/bench/embedded_engine.py [--model PATH|tiny] [--repeats 5] [--json]

- TTFT of a prompt that is cold, and of the same one when all but its last block is
  cached. Prompts are fresh each time; cold and warm alternate.
- Tokens a second of one sequence decoding alone, and of eight together; they
  alternate too.
- Blocks that eight choices of one prompt take at their peak.
- The model's share of the time while decoding; the rest is the engine's frame.

Without --model it is SmolLM2-135M-Instruct, fetched once into the cache. Medians of
the repeats. On a busy machine, bind the process to one core and count CPU seconds:

    taskset -c 0 python tests/bench/embedded_engine.py --cpu
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from warmroute.adapters.embedded.engine.engine import Engine
from warmroute.adapters.embedded.engine.options import EngineOptions
from warmroute.adapters.embedded.engine.request import GenerationRequest
from warmroute.adapters.embedded.engine.state import EngineState
from warmroute.adapters.embedded.engine.stats import EngineObserver
from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.crew import default_size
from warmroute.adapters.embedded.model.kv_store import KVStore
from warmroute.adapters.embedded.model.llama import Llama
from warmroute.adapters.embedded.model.loading import LoadedModel, load_model
from warmroute.adapters.embedded.model.member import Member
from warmroute.adapters.embedded.model.shares import Share

BLOCK = 16
PROMPT = 1_500
CONTEXT = 200
DECODED = 48


class Watch(EngineObserver):
    """Keep the last time to first token."""

    ttft_s = 0.0

    def first_token(self, request: GenerationRequest, ttft_s: float) -> None:
        self.ttft_s = ttft_s


Clock = Callable[[], float]


class TimedLlama(Llama):
    """Count the seconds spent in the model."""

    def __init__(self, timed: Llama, clock: Clock) -> None:
        super().__init__(timed.config, timed.weights)
        self.clock = clock
        self.spent_s = 0.0

    def compute(self, share: Share, store: KVStore, member: Member) -> F32:
        start = self.clock()
        logits = super().compute(share, store, member)
        self.spent_s += self.clock() - start
        return logits


class Bench:
    def __init__(self, engine: Engine, model: TimedLlama, watch: Watch) -> None:
        self.engine = engine
        self.model = model
        self.watch = watch
        self.random = random.Random(1)
        self.num_words = engine.limits.vocab_size

    def prompt(self, length: int) -> list[int]:
        return [self.random.randrange(100, self.num_words) for _ in range(length)]

    async def finish(self, prompt: list[int], **fields: Any) -> int:
        """Serve one request to its end; return its cached tokens."""
        given = {"max_tokens": 1, "temperature": 0.0, "ignore_eos": True, **fields}
        stream = self.engine.submit(GenerationRequest("bench", prompt, **given))
        async for _ in stream:
            pass
        return stream.num_cached_tokens

    async def ttft(self, prompt: list[int]) -> tuple[float, int]:
        cached = await self.finish(prompt)
        return self.watch.ttft_s, cached

    async def decode_rate(self, num_sequences: int) -> tuple[float, float]:
        """Tokens a second while all sequences decode, and the model's share of it.

        The first token of the last sequence begins it, since those admitted before have
        decoded beside the prefill of the others until then, and the first that is done
        ends it.
        """
        arrivals: list[list[float]] = []
        began_s = ended_s = 0.0

        async def one() -> None:
            nonlocal began_s, ended_s
            times: list[float] = []
            arrivals.append(times)
            given = {"max_tokens": DECODED, "temperature": 0.0, "ignore_eos": True}
            request = GenerationRequest("bench", self.prompt(CONTEXT), **given)
            async for _ in self.engine.submit(request):
                times.append(self.model.clock())
                if len(times) == 1:
                    began_s = self.model.spent_s
            ended_s = ended_s or self.model.spent_s

        await asyncio.gather(*(one() for _ in range(num_sequences)))
        start = max(times[0] for times in arrivals)
        stop = min(times[-1] for times in arrivals)
        made = sum(start < at <= stop for times in arrivals for at in times)
        return made / (stop - start), (ended_s - began_s) / (stop - start)


async def flush(engine: Engine) -> None:
    await engine.call(EngineState.flush)


async def alternate(
    repeats: int, *runs: Callable[[], Awaitable[Any]]
) -> list[list[Any]]:
    results: list[list[Any]] = [[] for _ in runs]
    for at in range(repeats):
        print(f"  {at + 1} of {repeats}", file=sys.stderr)
        for result, run in zip(results, runs, strict=True):
            result.append(await run())
    return results


async def first_tokens(bench: Bench, repeats: int) -> dict[str, float]:
    prompt: list[int] = []

    async def cold() -> float:
        await flush(bench.engine)
        prompt[:] = bench.prompt(PROMPT)
        return (await bench.ttft(prompt))[0]

    async def warm() -> float:
        seconds, cached = await bench.ttft(prompt)
        assert cached == (PROMPT - 1) // BLOCK * BLOCK
        return seconds

    colds, warms = await alternate(repeats, cold, warm)
    ratios = [w / c for c, w in zip(colds, warms, strict=True)]
    return {
        "ttft_cold_s": statistics.median(colds),
        "ttft_warm_s": statistics.median(warms),
        "ttft_warm_to_cold": statistics.median(ratios),
    }


async def decoding(bench: Bench, repeats: int) -> dict[str, float]:
    ones, eights = await alternate(
        repeats, lambda: bench.decode_rate(1), lambda: bench.decode_rate(8)
    )
    ratios = [eight[0] / one[0] for one, eight in zip(ones, eights, strict=True)]
    return {
        "decode_1_tokens_per_s": statistics.median(rate for rate, _ in ones),
        "decode_8_tokens_per_s": statistics.median(rate for rate, _ in eights),
        "decode_8_to_1": statistics.median(ratios),
        "decode_1_model_share": statistics.median(share for _, share in ones),
        "decode_8_model_share": statistics.median(share for _, share in eights),
    }


def begin_peak(state: EngineState) -> None:
    state.peak_blocks = state.pool.num_referenced


async def best_of_eight(bench: Bench) -> dict[str, float]:
    await flush(bench.engine)
    await bench.engine.call(begin_peak)
    await bench.finish(bench.prompt(2_000), n=8, max_tokens=100, temperature=1.0)
    blocks = bench.engine.stats().peak_blocks
    return {"best_of_8_blocks": blocks, "best_of_8_slots": blocks * BLOCK}


async def measure(
    path: str | None, repeats: int, only: str, *, cpu: bool
) -> dict[str, float]:
    clock = time.process_time if cpu else time.perf_counter
    watch = Watch()
    options = EngineOptions(
        num_blocks=256, block_size=BLOCK, threads=1 if cpu else default_size()
    )
    loaded = load_model(path)
    model = TimedLlama(loaded.model, clock)
    loaded = LoadedModel(model, loaded.tokenizer, loaded.name)
    engine = Engine(loaded, options, clock=clock, observer=watch)
    await engine.start()
    bench = Bench(engine, model, watch)
    try:
        await bench.finish(bench.prompt(64))
        results: dict[str, float] = {}
        if only in ("all", "ttft"):
            results |= await first_tokens(bench, repeats)
        if only in ("all", "decode"):
            results |= await decoding(bench, repeats)
        if only in ("all", "best-of-8"):
            results |= await best_of_eight(bench)
    finally:
        await engine.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="GGUF file, folder, or tiny")
    parser.add_argument(
        "--only", choices=["all", "ttft", "decode", "best-of-8"], default="all"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--cpu", action="store_true", help="count CPU seconds")
    given = parser.parse_args()
    results = asyncio.run(
        measure(given.model, given.repeats, given.only, cpu=given.cpu)
    )
    if given.json:
        print(json.dumps(results, indent=2))
        return
    for name, value in results.items():
        print(f"{name:24} {value:10.3f}")


if __name__ == "__main__":
    main()
