"""Print how long the vLLM plugin holds up an engine, on vLLM's own block pool.

    python tests/bench/vllm_plugin_slices.py [--blocks 65536] [--rounds 3]
    python tests/bench/vllm_plugin_slices.py --policies all

Runs with the Python of the environment that the example makes. There is no engine: the
pool is filled with chains of 1,024 blocks of 16 tokens, and each verb is given all of
it, in as many requests as that takes (one names at most 65,536 blocks). Between two
calls the engine may step, so what counts is the longest call of a verb. It is printed
in milliseconds on the clock, and of the CPU time of its thread: where the first is
longer than the second, the core was taken away meanwhile. Calls are those of all
rounds, and long are those above 5 ms on the clock. A part of an answer is encoded by
another thread of the engine, so its encoding is measured alone. `note` is the
microseconds that watching costs for each block that the engine caches, at its least.

With `--policies` there is one line for each block eviction policy instead: the longest
call of CPU time of any verb under it, and which verb that was, `policy` being the
change to it and away from it. `gc` is the most that a full garbage collection takes
longer for what was made since the pool was empty, under the policy and full: what the
engine pays for our tables at any time. `bare` is the
longest time that a loop took which does nothing but look at the clock, and how many
took more than 5 ms, in as much CPU time as the calls, up to 30 s: where a virtual
machine is held up, that counts as CPU time in both.
"""

import argparse
import gc
import hashlib
import os
import statistics
import sys
import tempfile
import time
from array import array
from functools import partial
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
BARE_S = 30.0

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
        # vLLM's own map of what is cached is gone through in any engine; with a block
        # in it when all is frozen, it is not, and what is left to see is ours.
        map_of: Any = self.pool.cached_block_hash_to_block
        map_of.insert(bytes(36), self.pool.null_block)
        self._num_chains = 0
        self.note_us: list[float] = []
        self.encoded_ms: list[float] = []

    def fill(self) -> "array[int]":
        """Cache as many new chains as there are pages for; returns their keys."""
        keys = array("Q")  # the garbage collector goes through lists
        for _ in range(self.pool.get_num_free_blocks() // CHAIN):
            self._num_chains += 1
            number = self._num_chains
            hashes = [
                hashlib.sha256(b"%d %d" % (number, depth)).digest()
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
            keys.extend(int.from_bytes(one[-8:], "big") for one in hashes)
        gc.collect()  # of what filling has left behind, nothing counts
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
    """Measure on one fresh pool, frozen when it was made, as engines are."""
    pooled = Pooled(num_blocks)
    freeze()
    keys = pooled.fill()
    all_of = partial(named, pooled, keys)
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
        "evict half": named(pooled, keys[: len(keys) // 2], "evict"),
        "flush": pooled.times("flush", {}),
    }
    gc.unfreeze()
    return Round(times, max(pooled.encoded_ms), statistics.median(pooled.note_us))


def measure_policies(num_blocks: int, names: list[str]) -> None:
    """Print the longest call under each policy, on one pool for each."""
    print(f"pool of {num_blocks} blocks; ms of CPU time")
    print(
        f"  {'':16} {'most':>6} {'of':18} {'calls':>6} {'long':>5} {'gc':>5} "
        f"{'bare':>6} {'long':>5}"
    )
    for name in names or _available():
        pooled = Pooled(num_blocks)
        freeze()
        times, gc_ms = run_policy(pooled, name)
        most, verb = max((cpu, verb) for verb, took in times for _, cpu in took)
        calls = sum(len(took) for _, took in times)
        long = sum(cpu > LONG_MS for _, took in times for _, cpu in took)
        bare = bare_ms(sum(cpu for _, took in times for _, cpu in took) / 1e3)
        print(
            f"  {name:16} {most:6.2f} {verb:18} {calls:6} {long:5} {gc_ms:5.1f} "
            f"{max(bare):6.2f} {sum(one > LONG_MS for one in bare):5}",
            flush=True,
        )
        gc.unfreeze()


def run_policy(pooled: Pooled, name: str) -> tuple[list[tuple[str, Times]], float]:
    """Have blocks come, be used and go under a policy in all ways that verbs know."""
    times = [("policy", pooled.times("policy", {"name": name}))]
    keys = pooled.fill()
    half = keys[: len(keys) // 2]
    for ttl_s in (600.0, 900.0):  # used, and freed again
        times.append(("retain", named(pooled, keys, "retain", ttl_s=ttl_s)))
        times.append(("release", named(pooled, keys, "release")))
    gc_ms = collection_ms()
    times.append(("snapshot", pooled.times("snapshot", {"token_ids": True})))
    times.append(("retain", named(pooled, keys, "retain", ttl_s=600.0)))
    times.append(("evict", named(pooled, keys[::-1][: len(half)], "evict")))
    pooled.fill()  # takes the place of others
    times.append(("expire", expired(pooled)))
    times.append(("demote", named(pooled, half, "demote")))
    pooled.fill()
    times.append(("policy", pooled.times("policy", {"name": "lru"})))
    times.append(("policy", pooled.times("policy", {"name": name})))
    pooled.fill()
    times.append(("flush", pooled.times("flush", {})))
    return times, gc_ms


def bare_ms(seconds: float) -> list[float]:
    """Return the longest looks at the clock of a loop that does nothing else."""
    now = time.thread_time()
    until, most = now + min(seconds, BARE_S), [0.0]
    while now < until:
        last, now = now, time.thread_time()
        if now - last > 1e-3:
            most.append(1e3 * (now - last))
    return most


def freeze() -> None:
    """Put what there is out of the garbage collector's sight, as engines do."""
    gc.collect()
    gc.freeze()


def collection_ms() -> float:
    """Return what a full collection takes that finds nothing, at its least."""
    took: list[float] = []
    for _ in range(3):
        begun = time.thread_time()
        gc.collect()
        took.append(1e3 * (time.thread_time() - begun))
    return min(took)


def named(pooled: Pooled, keys: "array[int]", verb: str, **more: object) -> Times:
    """Perform a verb on blocks, in as many requests as that takes."""
    times: Times = []
    for at in range(0, len(keys), NAMED):
        some = keys[at : at + NAMED].tobytes()
        times += pooled.times(verb, {"hashes": some, **more})
    return times


def _available() -> list[str]:
    from warmroute.policies.eviction.registry import evictions

    return [name for name in evictions.names() if name != "lru"]


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
    parser.add_argument("--policies", nargs="+", help="these, or all; a line for each")
    options = parser.parse_args()
    if INSIDE in os.environ:
        if options.policies:
            names = [name for name in options.policies if name != "all"]
            measure_policies(options.blocks, names)
        else:
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
