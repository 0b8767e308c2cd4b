"""Print how long the vLLM plugin holds up an engine, on vLLM's own block pool.

    python tests/bench/vllm_plugin_slices.py [--blocks 65536]

Runs with the Python of the environment that the example makes. There is no engine: the
pool is filled with chains of 1,024 blocks of 16 tokens, and each verb is given all of
it, as far as a request may name it (65,536 blocks). What counts is the longest call,
in CPU milliseconds of its thread, because between two calls the engine may step; the
best of three runs, so that other work on the machine counts little. `note` is the
microseconds that watching costs for each block that the engine caches.
"""

import argparse
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parents[2]
INSIDE = "WARMROUTE_BENCH_INSIDE_VLLM"
SIZE = 16
CHAIN = 1_024


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
        self.control: Any = install(scheduler, {})
        self.note_us: list[float] = []

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

    def longest_ms(self, verb: str, arguments: dict[str, object]) -> tuple[float, int]:
        """Perform a verb; return its longest call, and how many there were."""
        took: list[float] = []
        ask = verb
        while True:
            begun = time.thread_time()
            answer = self.control.call(1, ask, arguments)
            took.append((time.thread_time() - begun) * 1e3)
            if answer.get("done", True):
                assert "error" not in answer, answer
                return max(took), len(took)
            ask = ""


def measure(num_blocks: int) -> None:
    """Fill pools and print the longest call of each verb."""
    rounds = [run(num_blocks) for _ in range(3)]
    print(f"pool of {num_blocks} blocks; longest call in CPU ms, and calls")
    for verb in rounds[0][0]:
        longest = min(times[verb][0] for times, _ in rounds)
        print(f"  {verb:16} {longest:6.2f}  {rounds[0][0][verb][1]:5}")
    print(f"  note             {min(note for _, note in rounds):6.2f} us a block")


def run(num_blocks: int) -> tuple[dict[str, tuple[float, int]], float]:
    """Measure on one fresh pool; the garbage of filling it is not counted."""
    pooled = Pooled(num_blocks)
    keys = pooled.fill()
    gc.collect()
    gc.freeze()
    calls: list[tuple[str, Callable[[], tuple[float, int]]]] = [
        (name, lambda verb=verb, more=more: pooled.longest_ms(verb, more))  # type: ignore[misc]
        for name, verb, more in (
            ("snapshot", "snapshot", {"token_ids": True}),
            ("demote", "demote", {"hashes": keys}),
            ("retain", "retain", {"hashes": keys, "ttl_s": 60.0}),
            ("release", "release", {"hashes": keys}),
            ("policy arc", "policy", {"name": "arc"}),
            ("retain in arc", "retain", {"hashes": keys, "ttl_s": 60.0}),
            ("release in arc", "release", {"hashes": keys}),
            ("policy lru", "policy", {"name": "lru"}),
            ("hashes", "hashes", {"token_ids": list(range(CHAIN * SIZE))}),
            ("evict half", "evict", {"hashes": keys[: len(keys) // 2]}),
            ("flush", "flush", {}),
        )
    ]
    found = {name: call() for name, call in calls}
    return found, statistics.median(pooled.note_us)


def main() -> None:
    """Start again inside vLLM's environment, and measure there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=65_536, help="blocks of the pool")
    options = parser.parse_args()
    if INSIDE in os.environ:
        measure(options.blocks)
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
