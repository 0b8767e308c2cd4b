"""A whole warmroute whose tracing is switched while nobody sends.

Run: python tests/bench/tracing/switched_proxy.py CONFIG CONTROL

Two processes of the same program differ by several per cent for as long as they live,
by where their memory happens to lie; one process that is switched does not. CONTROL is
the path of a Unix socket that takes shares of sampling, None for no tracing, and
answers with the id of the thread that exports, None where there is none. `FLUSH` sends
what waits for a full batch.
"""

import asyncio
import os
import sys
import threading
from multiprocessing.connection import Listener
from pathlib import Path

from opentelemetry.sdk._shared_internal import BatchProcessor
from opentelemetry.sdk.trace import ReadableSpan

from warmroute.proxy.app import App
from warmroute.proxy.config import Config, ConfigSource
from warmroute.proxy.port import DataPort
from warmroute.proxy.process import find_loop, raise_file_limit, tune_allocator
from warmroute.proxy.telemetry.configured import tracer_of
from warmroute.proxy.telemetry.export import OtlpSink
from warmroute.proxy.telemetry.tracer import Tracer

FLUSH = "flush"


class Switch:
    """Put one of several tracers in force; each share has one, with its own export.

    Args:
        port: The data port whose requests are traced.
        config: Its tracing is that of the tracers, but for the share.
    """

    def __init__(self, port: DataPort, config: Config) -> None:
        self._port = port
        self._config = config
        self._tracers: dict[float | None, Tracer | None] = {None: None}

    def obey(self, listener: Listener) -> None:
        """Take shares until the other side leaves."""
        with listener, listener.accept() as control:
            while True:
                try:
                    order = control.recv()
                except EOFError:
                    return
                control.send(self._flush() if order == FLUSH else self._put(order))

    def _put(self, share: float | None) -> int | None:
        tracer = self._port.tracer = self._tracer(share)
        return None if tracer is None else _batches(tracer)._worker_thread.native_id

    def _flush(self) -> None:
        for tracer in self._tracers.values():
            if tracer is not None:
                _batches(tracer).force_flush()

    def _tracer(self, share: float | None) -> Tracer | None:
        if share not in self._tracers:
            assert self._config.tracing is not None
            sampled = self._config.tracing.model_copy(update={"sample": share})
            config = self._config.model_copy(update={"tracing": sampled})
            self._tracers[share] = tracer_of(config)
        return self._tracers[share]


def _batches(tracer: Tracer) -> BatchProcessor[ReadableSpan]:
    sink = tracer._sink
    assert isinstance(sink, OtlpSink)
    return sink._processor._batch_processor


async def serve(config: Config, control: str) -> int:
    """Serve until a signal."""
    plain = config.model_copy(update={"tracing": None})
    app = App(plain, lambda: plain)
    switch = Switch(app.port, config)
    listener = Listener(control)
    threading.Thread(target=switch.obey, args=(listener,), daemon=True).start()
    return await app.run()


def main() -> int:
    """Run the proxy as the command line does."""
    config = ConfigSource(Path(sys.argv[1]), [], {}).load(os.environ)
    tune_allocator()
    raise_file_limit(config.limits.connections)
    with asyncio.Runner(loop_factory=find_loop()) as runner:
        return runner.run(serve(config, sys.argv[2]))


if __name__ == "__main__":
    sys.exit(main())
