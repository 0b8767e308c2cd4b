"""Print what the NumPy model takes to prefill and to decode, and the ratios.

Every figure is the best of several runs, by the clock.

Run: python tests/bench/embedded_model.py [--model PATH] [--threads 2] [--repeat 5]
    [--prompt 1500]
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

from warmroute.adapters.embedded.model.arrays import I32
from warmroute.adapters.embedded.model.batch import Batch, SequenceRows
from warmroute.adapters.embedded.model.crew import Crew, default_size
from warmroute.adapters.embedded.model.kv_store import KVStore
from warmroute.adapters.embedded.model.llama import Llama
from warmroute.adapters.embedded.model.loading import load_model

BLOCK = 16
CHUNK = 512
DECODES = 8
CONTEXT = 200


class Bench:
    def __init__(self, model: Llama, prompt: int, repeat: int, threads: int) -> None:
        self.prompt = prompt
        self.repeat = repeat
        self.random = np.random.default_rng(0)
        pages = max(prompt // BLOCK, DECODES * (CONTEXT // BLOCK + 1)) + 2
        store = KVStore(model.config, pages, BLOCK)
        self.crew = Crew(model, store, threads, prompt, DECODES)
        self.pages = np.arange(1, pages, dtype=np.int32)
        vocabulary = model.config.vocab_size
        ids = self.random.integers(0, vocabulary, prompt)
        self.ids: I32 = ids.astype(np.int32)

    def prefill(self, start: int, chunk: int) -> None:
        for first in range(start, self.prompt, chunk):
            stop = min(first + chunk, self.prompt)
            positions = np.arange(first, stop, dtype=np.int32)
            rows = SequenceRows(0, stop - first, self.pages, stop)
            slots = positions.astype(np.int64) + BLOCK
            wanted = [stop - first - 1] if stop == self.prompt else []
            sample = np.array(wanted, np.int64)
            batch = Batch(self.ids[first:stop], positions, slots, [rows], sample)
            self.crew.forward(batch)

    def decode(self, count: int, context: int, scattered: bool = False) -> None:
        per = -(-context // BLOCK)
        pages = self.random.permutation(self.pages) if scattered else self.pages
        tables = [pages[at * per : (at + 1) * per] for at in range(count)]
        last = context - 1
        slots = [int(table[-1]) * BLOCK + last % BLOCK for table in tables]
        batch = Batch(
            self.ids[:count],
            np.full(count, last, np.int32),
            np.array(slots),
            [SequenceRows(at, 1, table, context) for at, table in enumerate(tables)],
            np.arange(count),
        )
        self.crew.forward(batch)

    def measure(self, name: str, call: Callable[[], None], scale: int = 1) -> float:
        """Print and return the best milliseconds."""
        call()
        taken = []
        for _ in range(self.repeat * scale):
            started = time.perf_counter()
            call()
            taken.append(time.perf_counter() - started)
        best = min(taken) * 1e3
        print(f"{name:42} {best:9.1f}", flush=True)
        return best


def run(bench: Bench) -> None:
    prompt, last_block = bench.prompt, (bench.prompt - 1) // BLOCK * BLOCK
    print(f"{'milliseconds':>52}")
    cold = bench.measure(f"prefill {prompt}", lambda: bench.prefill(0, prompt))
    bench.measure(
        f"prefill {prompt}, chunks of {CHUNK}", lambda: bench.prefill(0, CHUNK)
    )
    warm = bench.measure(
        "prefill of the last block only", lambda: bench.prefill(last_block, CHUNK), 4
    )
    one = bench.measure(f"decode 1 at {CONTEXT}", lambda: bench.decode(1, CONTEXT), 8)
    many = bench.measure(
        f"decode {DECODES} at {CONTEXT}", lambda: bench.decode(DECODES, CONTEXT), 8
    )
    bench.measure(
        f"decode {DECODES} at {CONTEXT}, scattered pages",
        lambda: bench.decode(DECODES, CONTEXT, scattered=True),
        8,
    )
    bench.measure(f"decode 1 at {prompt}", lambda: bench.decode(1, prompt), 8)
    bench.measure(
        f"decode 1 at {prompt}, scattered pages",
        lambda: bench.decode(1, prompt, scattered=True),
        8,
    )
    print(
        f"warm / cold {warm / cold:.3f}, tokens of {DECODES} together / one alone "
        f"{DECODES * one / many:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="as for load_model; SmolLM2 by default")
    parser.add_argument("--threads", type=int, default=default_size())
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=1500)
    options = parser.parse_args()
    started = time.perf_counter()
    loaded = load_model(options.model)
    print(f"{loaded.name} loaded in {time.perf_counter() - started:.1f} s")
    bench = Bench(loaded.model, options.prompt, options.repeat, options.threads)
    try:
        run(bench)
    finally:
        bench.crew.close()


if __name__ == "__main__":
    main()
