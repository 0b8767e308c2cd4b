"""Print what tracing adds to the CPU time of a request of 1 KB.

Run: python tests/bench/tracing/sampling_cost.py [--rounds N]
"""

import argparse
import asyncio
import logging
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from warmroute.proxy.config.tracing import TracingConfig
from warmroute.proxy.process import tune_collector
from warmroute.proxy.telemetry.configured import build_tracer
from warmroute.proxy.telemetry.export import OtlpSink
from warmroute.proxy.telemetry.span_tree import SpanTree
from warmroute.proxy.telemetry.tracer import Tracer

sys.path.insert(0, str(Path(__file__).parents[1] / "onlookers"))

from cost import Circuit, interval

# One full batch of spans at 5 %: 3 spans of every twentieth request.
REQUESTS = 3400
ALLOWED = 1.10
COLLECTOR = """
import http.server
class Collector(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *_): ...
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


class Variants:
    """The same proxy with tracing off, and at several rates of sampling."""

    def __init__(self, circuit: Circuit, url: str) -> None:
        self._circuit = circuit
        self._tracers: dict[str, Tracer | None] = {"off": None}
        for name, sample in (("0 %", 0.0), ("5 %", 0.05), ("100 %", 1.0)):
            tree = SpanTree("http", "127.0.0.1", 8080, prompts=False)
            tracing = TracingConfig(endpoint=url, sample=sample)
            self._tracers[name] = build_tracer(tracing, tree, "bench", {})

    @property
    def names(self) -> list[str]:
        return list(self._tracers)

    def run(self, name: str) -> float:
        """Return CPU seconds of some requests, export and all threads included."""
        tracer = self._tracers[name]
        self._circuit.app.port.tracer = tracer
        began = time.process_time()
        for at in range(REQUESTS):
            self._circuit.send(at)
        if tracer is not None:
            sink = tracer._sink
            assert isinstance(sink, OtlpSink)
            sink._processor.force_flush()
        return time.process_time() - began

    async def close(self) -> None:
        for tracer in self._tracers.values():
            if tracer is not None:
                await tracer.close()


def measure(variants: Variants, rounds: int) -> dict[str, list[float]]:
    """Return seconds by variant, one a round, in an order drawn for each round."""
    took: dict[str, list[float]] = {name: [] for name in variants.names}
    tune_collector()  # as a serving process does
    for number in range(rounds + 2):
        for name in random.Random(number).sample(variants.names, len(took)):
            seconds = variants.run(name)
            if number >= 2:
                took[name].append(seconds)
    return took


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    logging.disable()
    command = (sys.executable, "-c", COLLECTOR)
    collector = subprocess.Popen(  # noqa: ASYNC220 - before anything is measured
        command, stdout=subprocess.PIPE, text=True
    )
    try:
        assert collector.stdout is not None
        url = f"http://127.0.0.1:{int(collector.stdout.readline())}"
        variants = Variants(Circuit(), url)
        took = measure(variants, rounds)
        await variants.close()
    finally:
        collector.kill()
        collector.wait()
    return _report(took)


def _report(took: dict[str, list[float]]) -> int:
    base, worst = took["off"], 0.0
    print(f"off    {median(base) / REQUESTS * 1e6:.1f} us a request")
    for name, seconds in took.items():
        if name == "off":
            continue
        ratios = [one / off for one, off in zip(seconds, base, strict=True)]
        middle, low, high = interval(ratios)
        print(f"{name:6} x {middle:.3f} ({low:.3f} to {high:.3f})")
        if name == "5 %":
            worst = middle
    return 0 if worst <= ALLOWED else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
