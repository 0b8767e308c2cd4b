"""Print how fast KV events are taken in, and how long decisions take meanwhile.

    python tests/bench/ingest.py [--blocks 2000000] [--rate BLOCKS_A_SECOND]

A publisher in a process of its own floods a real ZMQ socket with events of 64 new
blocks of 16 tokens, ten events a batch; here one event loop receives, decodes, hashes
anew and enters them, and decides every 5 ms about a prompt of 2,048 blocks over eight
backends, after a look for what has come, as the router does. A decision's time counts
from when it was due, so it holds the wait for the loop, and for a core while others
have them: the publisher's threads and ZMQ's are three more. So the publisher steps back
for others, as engines elsewhere do, and a second line bounds what is the loop's own
doing, by the time that it had a core since the decision before. The decisions count in
the core's time, and how much of it is told.
With ``--rate 0`` the publisher is as fast as it can be.

Figures of different machines, or of one that others share, do not compare. So the last
line is a yardstick: the least that Python can do with such events, which is to read
them, to hash their tokens in a chain and to keep one entry a block in a dict, just
before and just after, and what part of its pace all of it together has.
"""

import argparse
import asyncio
import multiprocessing
import os
import resource
import time
from array import array
from functools import partial

import msgspec
import zmq
import zmq.asyncio
from xxhash import xxh3_64_intdigest

from warmroute.adapters.kv_events.address import EventAddress
from warmroute.adapters.kv_events.socket import ask_again
from warmroute.adapters.kv_events.subscriptions import Subscriptions
from warmroute.policies.kv.blocks import hash_tokens
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.policies.routing.base import Candidate, Query, build
from warmroute.proxy.process import find_loop, tune_allocator, tune_collector
from warmroute.proxy.prompt import Piece, Prompt
from warmroute.proxy.view import View
from warmroute.proxy.view.stream import Stream
from warmroute.proxy.view.track import Track
from warmroute.proxy.view.turns import Turns

BLOCK, CHAIN, EVENTS = 16, 64, 10
ROOT = 1
VOCABULARY = 128_000
EVERY_S = 0.005
PROMPT_BLOCKS = 2_048
_NICE = 19
NUM_BARE = 400


class BareEvent(msgspec.Struct, gc=False):
    """No more of an event than the yardstick needs."""

    block_hashes: list[int]
    token_ids: list[int]


class BareBatch(msgspec.Struct, gc=False, array_like=True):
    """The same of a batch."""

    timestamp: float
    events: list[BareEvent]


def payload(number: int) -> bytes:
    """Make a batch of ten chains that nobody has sent before."""
    events = []
    for chain in range(number * EVENTS, (number + 1) * EVENTS):
        first = chain * CHAIN
        step = 31 + 2 * (chain // VOCABULARY)  # or chains would come again
        tokens = [
            (chain * 7919 + at * step) % VOCABULARY for at in range(CHAIN * BLOCK)
        ]
        events.append(
            {
                "type": "BlockStored",
                "block_hashes": [
                    xxh3_64_intdigest(b"%d" % (first + at)) for at in range(CHAIN)
                ],
                "parent_block_hash": None,
                "token_ids": tokens,
                "block_size": BLOCK,
                "medium": "GPU",
                "group_idx": 0,
            }
        )
    return msgspec.msgpack.encode([time.time(), events, 0])


def bare_rate(payloads: list[bytes]) -> float:
    """Return the blocks a second of a core that the least of loops takes in."""
    read = msgspec.msgpack.Decoder(BareBatch).decode
    known: dict[int, int] = {}
    began = time.thread_time()
    for one in payloads:
        for event in read(one).events:
            tokens = array("I")
            tokens.fromlist(event.token_ids)
            hashes = hash_tokens(tokens, BLOCK, ROOT)
            known.update(zip(event.block_hashes, hashes, strict=True))
    return len(known) / (time.thread_time() - began)


def publish(
    num_batches: int, rate: float, pipe: "multiprocessing.connection.Connection"
) -> None:
    """Send all batches, at a rate or at once, when told to begin."""
    payloads = [payload(number) for number in range(num_batches)]
    os.nice(_NICE)
    socket = zmq.Context.instance().socket(zmq.PUB)
    socket.sndhwm = 0
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    pipe.send(port)
    pipe.recv()
    start = time.monotonic()
    for number, one in enumerate(payloads):
        if rate:
            due = start + number * EVENTS * CHAIN / rate
            time.sleep(max(0.0, due - time.monotonic()))
        socket.send_multipart([b"", number.to_bytes(8, "big"), one])
    pipe.recv()


class Decisions:
    """Decide about one prompt again and again, and note how late each was done."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.late_s: list[float] = []
        self.own_s: list[float] = []
        self.cpu_s = time.thread_time()
        self.spent_s = 0.0
        self.policy = build("expected_ttft", {})
        self.candidates = [Candidate(f"b{number}") for number in range(8)]
        for candidate in self.candidates:
            view.add_backend(candidate.name)
        tokens = array("I", range(PROMPT_BLOCKS * BLOCK))
        piece = Piece(len(tokens), ROOT, tokens, None)
        self.prompt = Prompt("completion", "m", "exact", (piece,), len(tokens))

    def decide(self, due: float) -> None:
        if self.view.hear is not None:
            self.view.hear()
        began = time.thread_time()
        self.view.match(self.prompt, self.candidates, 4.0, time.monotonic())
        query = Query(len(self.prompt.pieces[0].tokens or ()), time.monotonic())
        self.policy.choose(query, self.candidates)
        now = time.monotonic()
        cpu_s = time.thread_time()
        self.spent_s += cpu_s - began
        self.late_s.append(now - due)
        self.own_s.append(min(now - due, cpu_s - self.cpu_s))
        self.cpu_s = cpu_s
        due = max(now, due + EVERY_S)
        asyncio.get_running_loop().call_at(due, self.decide, due)


async def ingest(num_batches: int, rate: float, cap: int) -> None:
    """Take in what a publisher sends, and print what it cost."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=publish, args=(num_batches, rate, theirs), daemon=True
    )
    process.start()
    port = await asyncio.to_thread(ours.recv)
    index = PrefixIndex(cap)
    view = View(index)
    decisions = Decisions(view)
    tiers = view.announce("b0", dict)
    track = Track(
        index, tiers, lambda lora, salt: ROOT, partial(view.heard, "b0"), lambda: None
    )
    context = zmq.Context()
    address = EventAddress(f"tcp://127.0.0.1:{port}")
    again = partial(ask_again, zmq.asyncio.Context.shadow(context))
    turns = Turns()
    stream = Stream("b0", address, track, again, None, view.stamp, turns=turns)
    subscriptions = Subscriptions(context, turns.hurry)
    subscriptions.add(address, stream.received, lambda: None, lambda: stream.is_full)
    view.hear = subscriptions.look
    tune_allocator()
    tune_collector()
    payloads = [payload(num_batches + number) for number in range(NUM_BARE)]
    bare_rate(payloads)  # the first time is slower than any after it
    before = bare_rate(payloads)
    await asyncio.sleep(0.5)
    decisions.decide(time.monotonic())
    ours.send(None)
    while stream.seq is None:  # noqa: ASYNC110 - a stream has no event to wait for
        await asyncio.sleep(0.001)
    start, cpu = time.monotonic(), time.thread_time()
    decisions.late_s.clear()
    decisions.own_s.clear()
    decisions.spent_s = 0.0
    num_stored = 0
    while num_stored < num_batches * EVENTS and stream.sequencer.num_gaps == 0:
        await asyncio.sleep(0.02)
        num_stored = track.num_events["stored"]
    taken, cpu = time.monotonic() - start, time.thread_time() - cpu
    ours.send(None)
    bare = (before, bare_rate(payloads))
    report(num_stored * CHAIN, taken, cpu, decisions, index, stream, bare)
    subscriptions.close()
    context.destroy(linger=0)


def report(
    num_blocks: int,
    taken_s: float,
    cpu_s: float,
    decisions: Decisions,
    index: PrefixIndex,
    stream: Stream,
    bare: tuple[float, float],
) -> None:
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"{num_blocks:,} blocks in {taken_s:.2f} s: {num_blocks / taken_s:,.0f}/s, "
        f"{num_blocks / cpu_s:,.0f}/s of one core's time, "
        f"{decisions.spent_s / cpu_s:.0%} of which decided"
    )
    for what, times in (
        ("decisions meanwhile", decisions.late_s),
        ("of that this thread's own work", decisions.own_s),
    ):
        late = sorted(times)
        p50, p99 = late[len(late) // 2], late[len(late) * 99 // 100]
        print(
            f"{len(late):,} {what}: p50 {1e3 * p50:.2f} ms, "
            f"p99 {1e3 * p99:.2f} ms, max {1e3 * late[-1]:.2f} ms"
        )
    print(
        f"index: {index.num_blocks:,} blocks, {index.num_bytes:,} of "
        f"{index.max_bytes:,} bytes; process at most {grown:,} MiB; "
        f"gaps {stream.sequencer.num_gaps}"
    )
    part = num_blocks / cpu_s / (sum(bare) / 2)
    print(
        f"the least of loops: {bare[0]:,.0f}/s before, {bare[1]:,.0f}/s after; "
        f"taken in at {part:.2f} of it, "
        f"{part / (1 - decisions.spent_s / cpu_s):.2f} but for what decided"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=2_000_000)
    parser.add_argument("--rate", type=float, default=0, help="blocks/s; 0: no limit")
    parser.add_argument("--cap-mib", type=int, default=1536)
    chosen = parser.parse_args()
    num_batches = chosen.blocks // (EVENTS * CHAIN)
    with asyncio.Runner(loop_factory=find_loop()) as runner:
        runner.run(ingest(num_batches, chosen.rate, chosen.cap_mib << 20))


if __name__ == "__main__":
    main()
