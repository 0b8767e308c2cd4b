"""Print what access records and the cache-killer watch add to a request of 1 KB.

Run: python tests/bench/onlookers/cost.py [--rounds N]
"""

import argparse
import asyncio
import gc
import json
import logging
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from warmroute.policies.killers.detector import KillerDetector
from warmroute.proxy.app import App
from warmroute.proxy.config import ConfigSource
from warmroute.proxy.config.records import RecordsConfig
from warmroute.proxy.http.inbound import ClientConnection
from warmroute.proxy.http.outbound import UpstreamConnection
from warmroute.proxy.killer_watch import KillerWatch
from warmroute.proxy.records.recorder import Recorder

BACKENDS = 8
REQUESTS = 1000
RATE = 1000
LOOKS_A_S = 20
USAGE = {"prompt_tokens": 228, "completion_tokens": 50, "total_tokens": 278}
ANSWER = json.dumps({"id": "x", "choices": [{"text": "so " * 99}], "usage": USAGE})
REPLY = (
    f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    f"content-length: {len(ANSWER)}\r\n\r\n{ANSWER}"
).encode()


class Wire:
    """A fake transport: tells of writes, and never closes by itself."""

    def __init__(self, written: Callable[[], None] = lambda: None) -> None:
        self.write: Callable[[bytes], None] = lambda data: written()
        self.is_closed = False

    def is_closing(self) -> bool:
        return self.is_closed

    def abort(self) -> None:
        self.is_closed = True

    close = abort

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Circuit:
    """A whole proxy in this process, with a client and engines, but no sockets."""

    def __init__(self) -> None:
        urls = [f"http://127.0.0.1:{9100 + at}" for at in range(BACKENDS)]
        flags = {"admin": "off", "timeouts.pool_idle_s": "3600"}
        source = ConfigSource(None, urls, flags)
        config = source.load({})
        self.app = App(config, lambda: config)
        self.asked: list[UpstreamConnection] = []
        for backend in self.app.fleet.backends.values():
            backend.vitals.life = "up"
            backend.is_unsure = False
            self._connect(backend)
        self.app.fleet._routes.forget()
        wire: Any = Wire()
        self.client = ClientConnection(self.app.port)
        self.client.connection_made(wire)
        self.requests = list(_requests())

    def _connect(self, backend: Any) -> None:
        upstream = UpstreamConnection(self.app.port.outbox)
        wire: Any = Wire(lambda: self.asked.append(upstream))
        upstream.connection_made(wire)
        self.app.port.upstreams.pool(backend).release(upstream, time.monotonic())

    def send(self, at: int) -> None:
        """Send a request, and have it answered."""
        flush = self.app.port.outbox.flush
        self.client.data_received(self.requests[at % len(self.requests)])
        flush()
        self.asked.pop().data_received(REPLY)
        self.asked.clear()
        flush()


def _requests() -> list[bytes]:
    draw = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(draw.choices(letters, k=draw.randrange(2, 9))) for _ in range(999)]
    fronts = [" ".join(draw.choices(words, k=110)) for _ in range(32)]
    made = []
    for at in range(256):
        text = f"{fronts[at % 32]} {' '.join(draw.choices(words, k=40))}"[:900]
        message = {"role": "user", "content": text}
        body = json.dumps({"model": "m", "messages": [message]})
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: proxy\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        made.append((head + body).encode())
    return made


class Variants:
    """The same proxy with nothing on, with one onlooker, and with both."""

    def __init__(self, circuit: Circuit, folder: Path) -> None:
        self._circuit = circuit
        self._recorder = Recorder(RecordsConfig(path=folder / "access.jsonl"))
        self._watch = KillerWatch()
        self.names = ("off", "records", "killers", "both")

    async def run(self, name: str) -> float:
        """Return CPU seconds of some requests at 1,000/s, all threads included."""
        app, recorder = self._circuit.app, self._recorder
        app.router.recorder = recorder if name in ("records", "both") else None
        watch = self._watch if name in ("killers", "both") else None
        app.port.killers = watch
        began = time.process_time()
        for at in range(REQUESTS):
            self._circuit.send(at)
            if watch is not None and at % (RATE // LOOKS_A_S) == 0:
                watch.look()
        while recorder._is_awake or recorder._queue:
            time.sleep(0.05)  # noqa: ASYNC251 - nothing else runs here
        return time.process_time() - began

    def close(self) -> None:
        self._watch.close()
        self._recorder.close(10)


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return the median and the 95 % interval of it, by order statistics."""
    ordered, num = sorted(values), len(values)
    off = int(0.98 * num**0.5)
    low, high = max(0, num // 2 - off), min(num - 1, num // 2 + off)
    return median(ordered), ordered[low], ordered[high]


def look_us(size_bytes: int) -> float:
    """Return the median CPU time of one look at a prompt of that size."""
    draw, detector = random.Random(1), KillerDetector()
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(draw.choices(letters, k=draw.randrange(2, 9))) for _ in range(999)]
    took = []
    for at in range(100):
        text = " ".join(draw.choices(words, k=size_bytes // 5))[:size_bytes]
        began = time.process_time()
        detector.observe(text.encode(), 7, 4.0, float(at))
        took.append(time.process_time() - began)
    return median(took) * 1e6


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        variants = Variants(Circuit(), Path(folder))
        took: dict[str, list[float]] = {name: [] for name in variants.names}
        gc.collect()
        gc.freeze()
        for number in range(rounds + 2):
            order = random.Random(number).sample(variants.names, 4)
            for name in order:
                seconds = await variants.run(name)
                if number >= 2:
                    took[name].append(seconds)
        variants.close()
    base = took["off"]
    print(f"off       {median(base) / REQUESTS * 1e6:.1f} us a request")
    for name in variants.names[1:]:
        ratios = [one / off for one, off in zip(took[name], base, strict=True)]
        middle, low, high = interval(ratios)
        print(f"{name:8}  x {middle:.3f} ({low:.3f} to {high:.3f})")
    for kib in (1, 8, 32):
        print(f"a look at {kib} KiB: {look_us(1024 * kib):.0f} us")


if __name__ == "__main__":
    asyncio.run(main())
