"""Print what the prefix index, the hashes and the view cost, in microseconds.

    python tests/bench/index.py

The best of several short runs of CPU time on one core. Figures of different machines
do not compare; the last column, which is over one xxh3-64 of 64 bytes in a Python
loop on the same machine, nearly does.
"""

import gc
import time
import tracemalloc
from array import array
from collections.abc import Callable, Iterator

import msgspec
from xxhash import xxh3_64_intdigest

from warmroute.adapters.kv_events.wire import Stored, decode
from warmroute.policies.kv.blocks import hash_text, hash_tokens, root_hash
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.policies.kv.seen import SeenBlocks
from warmroute.policies.routing.base import Candidate
from warmroute.proxy.prompt import Piece, Prompt
from warmroute.proxy.view import View
from warmroute.proxy.view.track import Track

LONG = 2_048


def measure_us(call: Callable[[], object], number: int, repeat: int = 7) -> float:
    best = float("inf")
    for _ in range(repeat):
        start = time.process_time_ns()
        for _ in range(number):
            call()
        best = min(best, (time.process_time_ns() - start) / number)
    return best / 1_000


def unit_us() -> float:
    content, seed = bytes(64), 0

    def loop() -> None:
        last = seed
        for _ in range(1_000):
            last = xxh3_64_intdigest(content, last)

    return measure_us(loop, 5) / 1_000


def chain(seed: int, length: int) -> list[int]:
    return hash_text(bytes(256 * length), seed)


def fleet(num_backends: int, num_lengths: int) -> PrefixIndex:
    index = PrefixIndex()
    hashes = chain(1, LONG)
    for number in range(num_backends):
        holder = index.add_holder(f"b{number}")
        share = (number % num_lengths + 1) * LONG // num_lengths
        index.insert(holder, hashes[:share], 16, float(number))
    return index


def prompt_of(num_bytes: int) -> Prompt:
    root = root_hash("m", grade="estimated")
    piece = Piece(num_bytes // 4, root, None, bytes(num_bytes))
    return Prompt("chat", "m", "estimated", (piece,), num_bytes // 4)


def hashes_rows() -> Iterator[tuple[str, float]]:
    tokens = array("I", range(16 * LONG))
    text = bytes(256 * LONG)
    yield (
        "hash 2,048 blocks of tokens",
        measure_us(lambda: hash_tokens(tokens, 16, 1), 20),
    )
    yield "hash 2,048 blocks of text", measure_us(lambda: hash_text(text, 1), 20)
    seen, hashes = SeenBlocks(), chain(1, LONG)
    seen.add(hashes)
    yield (
        "prefix_seen of 2,048 blocks",
        measure_us(lambda: seen.prefix_seen(hashes), 500),
    )


def index_rows() -> Iterator[tuple[str, float]]:
    hashes = chain(1, LONG)
    for num_backends, num_lengths in ((8, 1), (64, 1), (64, 64), (512, 64)):
        index = fleet(num_backends, num_lengths)
        label = f"match 2,048 blocks, {num_backends} backends, {num_lengths} runs"
        yield label, measure_us(lambda index=index: index.match(hashes), 100)
    index = fleet(1, 1)
    stamps = iter(range(10**9))
    yield (
        "insert 2,048 blocks, all there",
        measure_us(lambda: index.insert(0, hashes, 16, float(next(stamps))), 500),
    )
    fresh = iter([chain(seed, LONG) for seed in range(2, 72)])
    yield (
        "insert of a new block, in 2,048",
        measure_us(lambda: index.insert(0, next(fresh), 16, float(next(stamps))), 10)
        / LONG,
    )
    events = iter([chain(seed, 64) for seed in range(100, 2_900)])
    yield (
        "store of a block, 64 an event",
        measure_us(lambda: store(index, next(events)), 400) / 64,
    )


def batch(first: int) -> bytes:
    """Return ten events of 64 new blocks of 16 tokens, as an engine sends them."""
    events = []
    for number in range(first, first + 10):
        keys = [xxh3_64_intdigest(b"%d %d" % (number, at)) for at in range(64)]
        tokens = [(number * 7919 + at) % 128_000 for at in range(64 * 16)]
        events.append(Stored(list(keys), None, tokens, 16, None, "GPU", group_idx=0))
    return msgspec.msgpack.encode([1.0, events, 0])


def event_rows() -> Iterator[tuple[str, float]]:
    index = PrefixIndex(2**30)
    tiers = {tier: index.add_holder("a", tier) for tier in ("gpu", "host", "disk")}
    track = Track(index, tiers, lambda lora, salt: 1, lambda size: None, lambda: None)
    payloads = iter([batch(first) for first in range(0, 3_000, 10)])
    yield (
        "event of 64 blocks: decoded, hashed, entered; a block",
        measure_us(lambda: track.apply(decode(next(payloads)), 1e9), 40) / 640,
    )


def view_rows() -> Iterator[tuple[str, float]]:
    for num_backends in (8, 64):
        for num_bytes in (1_024, 32_768):
            request = request_of(num_bytes, num_backends)
            request()
            label = f"view: a request of {num_bytes:,} bytes, {num_backends} backends"
            yield label, measure_us(request, 300)


def request_of(num_bytes: int, num_backends: int) -> Callable[[], None]:
    """Return the view's whole work for one request that finds its prompt cached."""
    view, prompt = View(PrefixIndex()), prompt_of(num_bytes)
    candidates = [Candidate(f"b{number}") for number in range(num_backends)]
    for candidate in candidates:
        view.add_backend(candidate.name, capacity_tokens=10**6)

    def request() -> None:
        lookup = view.match(prompt, candidates, 4.0, 1.0)
        ticket = view.dispatched(lookup, "b3", 1.0)
        view.confirmed(ticket, 1.0)
        view.realised(ticket, ticket.predicted_tokens, 1.0)

    return request


def store(index: PrefixIndex, hashes: list[int], stamp: float = 1e9) -> None:
    index.store(0, None, hashes, hashes, 16, stamp)


def bytes_a_block(num_blocks: int, length: int, by_hash: bool) -> float:
    index = PrefixIndex()
    holder = index.add_holder("a")
    gc.collect()
    tracemalloc.start()
    for seed in range(num_blocks // length):
        if by_hash:
            store(index, chain(seed, length), float(seed))
        else:
            index.insert(holder, chain(seed, length), 16, float(seed))
    gc.collect()
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return grown / index.num_blocks


def main() -> None:
    unit = unit_us()
    print(f"{'':50}{'us':>10}{'ratio':>10}")
    for rows in (hashes_rows, index_rows, event_rows, view_rows):
        for label, taken in rows():
            print(f"{label:50}{taken:10.3f}{taken / unit:10.1f}")
    for length in (4, 64, LONG):
        sent = bytes_a_block(60_000, length, by_hash=False)
        told = bytes_a_block(60_000, length, by_hash=True)
        label = f"bytes a block in runs of {length:,}"
        print(f"{label:40} sent {sent:6.1f}   announced {told:6.1f}")


if __name__ == "__main__":
    main()
