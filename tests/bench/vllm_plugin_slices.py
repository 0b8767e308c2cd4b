"""Print how long the vLLM plugin holds up an engine, on vLLM's own block pool.

    python tests/bench/vllm_plugin_slices.py [--blocks 65536] [--rounds 3]

Runs with the Python of the environment that the example makes. There is no engine: the
pool is filled with chains of 1,024 blocks of 16 tokens, and each verb is given all of
it, in as many requests as that takes (one names at most 65,536 blocks). Between two
calls the engine may step, so what counts is the longest call of a verb. It is printed
in milliseconds on the clock, and of the CPU time of its thread: where the first is
longer than the second, the core was taken away meanwhile. Calls are those of all
rounds, and long are those above 5 ms on the clock. A part of an answer is encoded by
another thread of the engine, so its encoding is measured alone. `note` is the
microseconds that watching costs for each block that the engine caches, at its least.
"""

import argparse
import gc
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
INSIDE = "WARMROUTE_BENCH_INSIDE_VLLM"
SIZE = 16
CHAIN = 1_024
NAMED = 65_536
"""Blocks that one request may name."""

LONG_MS = 5.0
POLICIES = ("arc", "s3fifo", "lfu")

Times = list[tuple[float, float]]
"""Milliseconds of each call: on the clock, and of the thread's CPU time."""


class Pooled:
    """A pool of vLLM's with the plugin's control, as in an engine."""

    def __init__(self, num_blocks: int) -> None:
        from vllm.distributed.kv_events import NullEventPublisher
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.block_pool import BlockPool
        from vllm.v1.core.kv_cache_utils import init_none_hash

        from warmroute.adapters.vllm.plugin.installation import install

        init_none_hash(get_hash_fn_by_name("sha256"))
        self.pool = BlockPool(num_blocks + 1, True, SIZE, enable_kv_cache_events=True)
        manager = SimpleNamespace(
            block_pool=self.pool,
            take_events=self.pool.take_events,
            kv_cache_config=SimpleNamespace(kv_cache_groups=[None]),
            coordinator=SimpleNamespace(
                single_type_managers=[SimpleNamespace(block_size=SIZE)]
            ),
        )
        config = SimpleNamespace(
            parallel_config=SimpleNamespace(data_parallel_size=1),
            model_config=SimpleNamespace(max_model_len=CHAIN * SIZE),
            cache_config=SimpleNamespace(prefix_caching_hash_algo="sha256"),
        )
        scheduler: Any = SimpleNamespace(
            kv_cache_manager=manager,
            vllm_config=config,
            kv_event_publisher=NullEventPublisher(),
            connector=None,
        )
        self.stock = self.pool.cache_full_blocks
        faults = {"budget": "unsupported: there is no model"}
        self.control: Any = install(scheduler, faults)
        self.note_us: list[float] = []
        self.encoded_ms: list[float] = []

    def fill(self) -> list[int]:
        """Cache as many chains as fit; returns the keys of all blocks."""
        keys: list[int] = []
        for number in range((self.pool.num_gpu_blocks - 1) // CHAIN):
            hashes = [
                bytes(24) + (number * CHAIN + depth + 1).to_bytes(8, "big")
                for depth in range(CHAIN)
            ]
            request: Any = SimpleNamespace(
                request_id=str(number),
                block_hashes=hashes,
                all_token_ids=list(range(CHAIN * SIZE)),
                cache_salt=None,
                lora_request=None,
                mm_features=[],
                prompt_embeds=None,
                session_id=None,
            )
            pages = self.pool.get_new_blocks(CHAIN)
            begun = time.thread_time()
            self.pool.cache_full_blocks(request, pages, 0, CHAIN, SIZE, 0)
            took_us = (time.thread_time() - begun) * 1e6 / CHAIN
            self.note_us.append(took_us - self._stock_us(request))
            self.pool.free_blocks(reversed(pages))
            self.pool.take_events()
            keys += [number * CHAIN + depth + 1 for depth in range(CHAIN)]
        return keys

    def _stock_us(self, request: Any) -> float:
        """Return what vLLM itself takes to cache these blocks, on pages elsewhere."""
        from vllm.v1.core.block_pool import BlockPool

        other = BlockPool(CHAIN + 1, True, SIZE, enable_kv_cache_events=True)
        pages = other.get_new_blocks(CHAIN)
        begun = time.thread_time()
        other.cache_full_blocks(request, pages, 0, CHAIN, SIZE, 0)
        return (time.thread_time() - begun) * 1e6 / CHAIN

    def times(self, verb: str, arguments: dict[str, object]) -> Times:
        """Perform a verb; return what each of its calls took."""
        import msgspec

        took: Times = []
        ask, given = verb, arguments
        while True:
            begun = time.perf_counter(), time.thread_time()
            answer = self.control.call(1, ask, given)
            ended = time.perf_counter(), time.thread_time()
            took.append((1e3 * (ended[0] - begun[0]), 1e3 * (ended[1] - begun[1])))
            assert "error" not in answer, answer
            begun_s = time.thread_time()
            msgspec.msgpack.encode(answer)
            self.encoded_ms.append(1e3 * (time.thread_time() - begun_s))
            if answer.get("done", True):
                return took
            ask, given = "", {}


def measure(num_blocks: int, num_rounds: int) -> None:
    """Fill pools and print what the calls of each verb took."""
    rounds = [run(num_blocks) for _ in range(num_rounds)]
    print(f"pool of {num_blocks} blocks; ms on the clock and of CPU time")
    print(
        f"  {'':16} {'median':>7} {'most':>7} {'most CPU':>9} {'calls':>6} {'long':>5}"
    )
    for verb in rounds[0].times:
        every = [one.times[verb] for one in rounds]
        median = statistics.median(wall for times in every for wall, _ in times)
        most = max(wall for times in every for wall, _ in times)
        most_cpu = max(cpu for times in every for _, cpu in times)
        calls = sum(map(len, every))
        long = sum(wall > LONG_MS for times in every for wall, _ in times)
        print(
            f"  {verb:16} {median:7.2f} {most:7.2f} {most_cpu:9.2f} {calls:6} {long:5}"
        )
    print(f"  encoding a part, at most {min(one.encoded_ms for one in rounds):.2f} ms")
    print(f"  note, {min(one.note_us for one in rounds):.2f} us a block")


class Round(NamedTuple):
    """What was measured on one pool."""

    times: dict[str, Times]
    encoded_ms: float
    note_us: float


def run(num_blocks: int) -> Round:
    """Measure on one fresh pool; the garbage of filling it is not counted."""
    pooled = Pooled(num_blocks)
    keys = pooled.fill()
    gc.collect()
    gc.freeze()

    def all_of(verb: str, keys: list[int] = keys, **more: object) -> Times:
        times: Times = []
        for at in range(0, len(keys), NAMED):
            times += pooled.times(verb, {"hashes": keys[at : at + NAMED], **more})
        return times

    prompt = list(range(CHAIN * SIZE))
    times = {
        "snapshot": pooled.times("snapshot", {"token_ids": True}),
        "demote": all_of("demote"),
        "retain": all_of("retain", ttl_s=600.0),
        "release": all_of("release"),
        "retain again": all_of("retain", ttl_s=600.0),
        "expire": expired(pooled),
        "hashes": pooled.times("hashes", {"token_ids": prompt}),
        "pages": pooled.times("pages", {}),
        "evict half": all_of("evict", keys[: len(keys) // 2]),
        "flush": pooled.times("flush", {}),
    }
    pooled.fill()
    for name in POLICIES:
        times[f"policy {name}"] = pooled.times("policy", {"name": name})
        times[f"retain, {name}"] = all_of("retain", ttl_s=600.0)
        times[f"release, {name}"] = all_of("release")
    times["policy lru"] = pooled.times("policy", {"name": "lru"})
    gc.unfreeze()
    return Round(times, max(pooled.encoded_ms), statistics.median(pooled.note_us))


def expired(pooled: Pooled) -> Times:
    """Have all go that is due, as the door's timer does; some at a time."""
    times: Times = []
    pooled.control._retention._clock = lambda: time.monotonic() + 600.0
    while pooled.control._retention._deadlines:
        times += pooled.times("expire", {})
    return times


def main() -> None:
    """Start again inside vLLM's environment, and measure there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=65_536, help="blocks of the pool")
    parser.add_argument("--rounds", type=int, default=3, help="pools one after another")
    options = parser.parse_args()
    if INSIDE in os.environ:
        measure(options.blocks, options.rounds)
        return
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "examples" / "01_two_vllm")]
    from engines.vllm_plugin_rig import link_package
    from two_vllm.environment import ensure_environment

    python = ensure_environment() / "bin" / "python"
    folder = link_package(Path(tempfile.mkdtemp()) / "site")
    environ = {**os.environ, INSIDE: "1", "PYTHONPATH": str(folder)}
    os.execve(python, [str(python), *sys.argv], environ)


if __name__ == "__main__":
    main()
